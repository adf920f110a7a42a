// npm test: types, lint, then every test on a real PostgreSQL. The last line of stdout is `N passed, M failed`.

import { prepareDebianPrograms } from '../packages/pawl/test/support/debian.ts'
import { runFull } from './full.ts'
import { line, report, runNode, summary } from './phase.ts'
import { runVitest } from './run-vitest.ts'
import { staticChecks } from './static-checks.ts'

/** The whole of `npm test` is promised to take less than twenty minutes on two cores; a run that hangs is ended before that. */
const timeoutMs = 18 * 60_000

const isFull = process.argv.includes('--full')
const startedMs = performance.now()
const total = { passed: 0, failed: 0, skipped: 0 }

function add(counts: Partial<typeof total>): void {
  total.passed += counts.passed ?? 0
  total.failed += counts.failed ?? 0
  total.skipped += counts.skipped ?? 0
}

for (const check of staticChecks) {
  const ended = await runNode(check)
  report(ended)
  add(ended.ok ? { passed: 1 } : { failed: 1 })
}

const preparedMs = performance.now()
const missing = await prepareDebianPrograms()
line(missing.length === 0 ? 'ok' : 'skipped', "programs (Debian's)", performance.now() - preparedMs, missing.join('; '))

const { ended, counts, results } = await runVitest(isFull ? { env: { PAWL_FULL: '1' } } : { timeoutMs })
add(counts)
for (const test of results.tests) if (test.state === 'failed') line('failed', test.file, test.ms, test.title)
for (const test of results.tests) if (test.state === 'skipped') line('skipped', test.file, undefined, test.title)
report({ ...ended, ok: counts.failed === 0 }, summary(counts))

if (isFull) add(await runFull())

line(total.failed === 0 ? 'ok' : 'failed', 'everything', performance.now() - startedMs)
console.log(summary(total))
process.exitCode = total.failed === 0 ? 0 : 1
