// Runs vitest with our reporter beside its own, and reads what was found.

import { rmSync } from 'node:fs'
import { type Ended, runNode } from './phase.ts'
import { countResults, type Results, readResults, resultsFile } from './results.ts'
import { bin } from './static-checks.ts'

export interface VitestRun {
  readonly name?: string
  readonly args?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  readonly node?: string
  readonly isLive?: boolean
  readonly timeoutMs?: number
  /** Where the results go; the default is what `npm run acceptance` reads. */
  readonly file?: string
}

export interface VitestEnd {
  readonly ended: Ended
  readonly results: Results
  readonly counts: { readonly passed: number; readonly failed: number; readonly skipped: number }
}

export async function runVitest(run: VitestRun = {}): Promise<VitestEnd> {
  const { name = 'tests (vitest)', args = [], file = resultsFile, env, node, isLive = true, timeoutMs } = run
  rmSync(file, { force: true })
  const ended = await runNode({
    name,
    args: [bin('vitest'), 'run', '--reporter=default', '--reporter=./scripts/reporter.ts', ...args],
    env: { ...env, PAWL_RESULTS: file },
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
