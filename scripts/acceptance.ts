// npm run acceptance [-- --json] [--fresh]: each promise of docs/guarantees.md with pass, fail, missing or skipped, and the tiers of the
// tests that prove it. The results of the last run are used if it ran both tiers to their end and nothing has changed since; otherwise the
// tests that name a promise are run.

import { join } from 'node:path'
import { prepareDebianPrograms } from '../packages/pawl/test/support/debian.ts'
import { isBroken, judge, readGuarantees, tiersById, type Verdict } from './guarantees.ts'
import { root, summary } from './phase.ts'
import { fingerprint, readResults, type TestResult } from './results.ts'
import { runVitest } from './tests/run-vitest.ts'

const isJson = process.argv.includes('--json')
const isFresh = process.argv.includes('--fresh')

async function results(): Promise<readonly TestResult[]> {
  const last = readResults()
  if (!isFresh && last.isWhole && last.isFull && last.sources === fingerprint()) {
    console.log(`From the test run of ${last.startedAt}; nothing has changed since.\n`)
    return last.tests
  }
  await prepareDebianPrograms()
  const titles = '\\[[A-Z][0-9]+\\]'
  const file = (tier: string): string => join(root, '.pawl', 'test', `acceptance-${tier}.jsonl`)
  const quick = await runVitest({ name: 'pg tests', titles, args: ['--exclude', '**/*.slow.test.ts'], file: file('pg') })
  const slow = await runVitest({ name: 'slow tests', titles, args: ['.slow.test.ts', '--maxWorkers=1'], file: file('slow') })
  return [...quick.results.tests, ...slow.results.tests]
}

const guarantees = readGuarantees()
const tests = await results()
const verdicts = judge(guarantees, tests)
const tiers = tiersById(tests)
for (const guarantee of guarantees) {
  const verdict = verdicts.get(guarantee.id)!
  const shown = verdict === 'missing' && guarantee.state === 'later' ? 'missing (later)' : verdict
  const by = [...(tiers.get(guarantee.id) ?? [])].sort().join('+')
  console.log(`${guarantee.id.padEnd(4)}  ${shown.padEnd(15)}  ${by.padEnd(12)}  ${guarantee.text}`)
}
const count = (verdict: Verdict): number => [...verdicts.values()].filter((one) => one === verdict).length
const failed = guarantees.filter((guarantee) => isBroken(guarantee, verdicts.get(guarantee.id)!)).length
console.log(`\n${summary({ passed: count('pass'), failed, skipped: count('skipped') })}`)
if (isJson) console.log(JSON.stringify({ ids: Object.fromEntries(verdicts) }))
process.exitCode = failed === 0 ? 0 : 1
