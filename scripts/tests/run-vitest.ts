// Runs vitest with our reporter beside its own, and reads what was found. A file that fails is run once more, alone: passed then, it
// counts as passed and is named as flaky.

import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { type Ended, root, runNode } from '../phase.ts'
import { type Counts, countResults, type Results, readResults, resultsFile, type TestResult } from '../results.ts'
import { bin } from '../static-checks.ts'

/** More flaky files than this are not bad luck: the run fails. */
export const flakyFilesMax = 3

export interface VitestRun {
  readonly name?: string
  readonly args?: readonly string[]
  /** Only tests whose title this pattern matches are run and counted. */
  readonly titles?: string
  readonly env?: Readonly<Record<string, string>>
  readonly node?: string
  readonly isLive?: boolean
  readonly timeoutMs?: number
  /** Where the results go. */
  readonly file?: string
}

export interface VitestEnd {
  readonly ended: Ended
  readonly results: Results
  readonly counts: Counts
}

export async function runVitest(run: VitestRun = {}): Promise<VitestEnd> {
  const { name = 'tests (vitest)', args = [], titles, file = resultsFile, env, node, isLive = true, timeoutMs } = run
  rmSync(file, { force: true })
  const pattern = titles === undefined ? [] : ['--testNamePattern', titles]
  const ended = await runNode({
    name,
    args: [bin('vitest'), 'run', '--reporter=default', '--reporter=./scripts/tests/reporter.ts', ...pattern, ...args],
    env: { ...env, PAWL_RESULTS: file, ...(titles === undefined ? {} : { PAWL_TITLES: titles }) },
    isLive,
    ...(node === undefined ? {} : { node }),
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
  })
  const results = readResults(file)
  const counts = countResults(results)
  // It failed, or never came to its end, and no test says so: that is one failure nevertheless.
  const isUnexplained = (!ended.ok || !results.isWhole) && counts.failed === 0
  return { ended, results, counts: isUnexplained ? { ...counts, failed: 1 } : counts }
}

export interface RetriedEnd extends VitestEnd {
  /** Tests that failed beside others and passed alone. */
  readonly flaky: readonly TestResult[]
}

export interface RetriedRun extends VitestRun {
  /** What runs one file by itself. */
  readonly alone?: (path: string) => readonly string[]
}

/** As `runVitest`, and then each file that failed once more, with nothing beside it. */
export async function runWithRetry(run: RetriedRun): Promise<RetriedEnd> {
  const first = await runVitest(run)
  const failed = first.results.tests.filter(({ state }) => state === 'failed')
  const files = [...new Set(failed.map(({ file }) => file))]
  // An error outside of any test names no file, so nothing could be shown by a second run.
  if (files.length === 0 || files.length > flakyFilesMax || first.results.unhandled > 0 || !first.results.isWhole)
    return { ...first, flaky: [] }
  const alone = run.alone ?? ((path) => [path, '--maxWorkers=1'])
  let { tests } = first.results
  const flaky: TestResult[] = []
  for (const [index, path] of files.entries()) {
    const again = await runVitest({
      ...run,
      name: `again, alone: ${path}`,
      args: alone(path),
      file: join(root, '.pawl', 'test', `again-${index + 1}.jsonl`),
    })
    if (again.counts.failed > 0) continue
    flaky.push(...failed.filter(({ file }) => file === path))
    tests = [...tests.filter(({ file }) => file !== path), ...again.results.tests]
  }
  const results = { ...first.results, tests }
  const counts = countResults(results)
  return { ended: { ...first.ended, ok: counts.failed === 0 }, results, counts, flaky }
}
