// npm run check: types, lint and unit tests, all at once, in under a minute. Needs no database.

import { join } from 'node:path'
import { isOld, readPublished } from '../bench/harness/report/publish.ts'
import { line, report, root, runNode, summary } from './phase.ts'
import { staticChecks } from './static-checks.ts'
import { runVitest } from './tests/run-vitest.ts'

const startedMs = performance.now()
const total = { passed: 0, failed: 0, skipped: 0 }

async function unit(): Promise<void> {
  const { ended, counts } = await runVitest({
    name: 'unit tests (vitest)',
    args: ['--config', 'scripts/tests/unit.vitest.config.ts', '--root', '.'],
    isLive: false,
    file: join(root, '.pawl', 'test', 'unit.jsonl'),
  })
  report({ ...ended, ok: counts.failed === 0 }, summary(counts))
  total.passed += counts.passed
  total.failed += counts.failed
  total.skipped += counts.skipped
}

await Promise.all([
  unit(),
  ...staticChecks.map(async (check) => {
    const ended = await runNode(check)
    report(ended)
    if (ended.ok) total.passed++
    else total.failed++
  }),
])

// No fault of a change: they are measured again before a release.
for (const published of readPublished())
  if (isOld(published)) line('note', 'benchmarks', undefined, `${published.bench}: older than the code`)

console.log(`\n${((performance.now() - startedMs) / 1000).toFixed(1)} s`)
console.log(summary(total))
process.exitCode = total.failed === 0 ? 0 : 1
