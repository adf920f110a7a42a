// npm test: types, lint, every test that needs no other process, and a smoke of the slow tier. npm run test:full adds the rest, and can be
// split: `-- --part 2/3`, `-- --only jobs`. The last line of stdout is `N passed, M failed`.

import { join } from 'node:path'
import { prepareDebianPrograms } from '../packages/pawl/test/support/debian.ts'
import { line, report, root, runNode, summary } from './phase.ts'
import { type Counts, type Results, sumCounts, type TestResult, writeResults } from './results.ts'
import { staticChecks } from './static-checks.ts'
import { fullSteps } from './tests/full.ts'
import { flakyFilesMax, type RetriedEnd, runWithRetry, type VitestRun } from './tests/run-vitest.ts'
import { pgTestMs, smoke, smokePattern, tierOf } from './tests/tiers.ts'

/** `npm test` is promised to take at most seven minutes on two cores; on a machine that is far slower a run that hangs is ended. */
const timeoutMs = 25 * 60_000
const slowestShown = 10

const isFull = process.argv.includes('--full')
const startedMs = performance.now()
const counts: Counts[] = []
const runs: Results[] = []
const flaky: TestResult[] = []

async function vitest(run: VitestRun): Promise<Counts> {
  const { name = 'tests' } = run
  const end: RetriedEnd = await runWithRetry({
    timeoutMs,
    ...run,
    file: join(root, '.pawl', 'test', `${name.replaceAll(/\W+/g, '-')}.jsonl`),
  })
  for (const test of end.results.tests) if (test.state === 'failed') line('failed', test.file, test.ms, test.title)
  for (const test of end.results.tests) if (test.state === 'skipped') line('skipped', test.file, undefined, test.title)
  report({ ...end.ended, ok: end.counts.failed === 0 }, summary(end.counts))
  runs.push(end.results)
  flaky.push(...end.flaky)
  return end.counts
}

/** Process tests come last and one at a time: beside others they would disturb each other's time. */
async function runSmoke(): Promise<Counts> {
  const end = await vitest({
    name: 'smoke of the slow tier',
    args: [...smoke.map(({ file }) => file), '--maxWorkers=1'],
    titles: smokePattern(),
    env: { PAWL_SMOKE: '1' },
  })
  const ran = runs.at(-1)!.tests
  const missing = smoke.flatMap(({ file, titles }) =>
    titles
      .filter((title) => !ran.some((test) => test.file === file && test.title.includes(title)))
      .map((title) => `${file}: ${title}`),
  )
  for (const each of missing) line('failed', each, undefined, 'no such test')
  return { ...end, failed: end.failed + missing.length }
}

function reportTimes(tests: readonly TestResult[]): void {
  const slowest = [...tests].sort((a, b) => b.ms - a.ms).slice(0, slowestShown)
  console.log(`\nThe ${slowest.length} slowest tests:`)
  for (const { file, title, ms } of slowest) console.log(`  ${(ms / 1000).toFixed(1).padStart(6)} s  ${file}  ${title}`)
  for (const { file, title, ms } of tests) {
    if (tierOf(file) === 'slow' || ms <= pgTestMs.warning) continue
    console.log(`${ms > pgTestMs.slow ? 'slow' : 'warning'}: ${(ms / 1000).toFixed(1)} s in ${file}: ${title}`)
  }
}

for (const check of staticChecks) {
  const ended = await runNode(check)
  report(ended)
  counts.push({ passed: ended.ok ? 1 : 0, failed: ended.ok ? 0 : 1, skipped: 0 })
}
const preparedMs = performance.now()
const missing = await prepareDebianPrograms()
line(missing.length === 0 ? 'ok' : 'skipped', "programs (Debian's)", performance.now() - preparedMs, missing.join('; '))

if (isFull) {
  for (const { run } of fullSteps(process.argv.slice(2), vitest)) counts.push(await run())
} else {
  counts.push(await vitest({ name: 'tests', args: ['--exclude', '**/*.slow.test.ts'] }))
  counts.push(await runSmoke())
}

writeResults(runs, isFull && !process.argv.includes('--only') && !process.argv.includes('--part'))
reportTimes(runs.flatMap(({ tests }) => tests))
const total = sumCounts(counts)
const flakyFiles = new Set(flaky.map(({ file }) => file)).size
const isGood = total.failed === 0 && flakyFiles <= flakyFilesMax
line(isGood ? 'ok' : 'failed', 'everything', performance.now() - startedMs, flakyFiles > 0 ? `${flakyFiles} flaky files` : '')
for (const { file, title } of flaky) console.log(`flaky ${file} ${title}`)
console.log(summary(total))
process.exitCode = isGood ? 0 : 1
