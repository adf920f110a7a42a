// npm run acceptance [-- --json] [--fresh]: each promise of docs/guarantees.md with pass, fail, missing or skipped. The results of the last
// run of the tests are used if it came to its end and nothing has changed since; otherwise the tests that name a promise are run.

import { prepareDebianPrograms } from '../packages/pawl/test/support/debian.ts'
import { type Guarantee, judge, readGuarantees, type Verdict } from './guarantees.ts'
import { summary } from './phase.ts'
import { fingerprint, type Results, readResults } from './results.ts'
import { runVitest } from './run-vitest.ts'

const isJson = process.argv.includes('--json')
const isFresh = process.argv.includes('--fresh')

async function results(): Promise<Results> {
  const last = readResults()
  if (!isFresh && last.isWhole && last.sources === fingerprint()) {
    console.log(`From the test run of ${last.startedAt}; nothing has changed since.\n`)
    return last
  }
  await prepareDebianPrograms()
  return (await runVitest({ args: ['--testNamePattern', '\\[[A-Z][0-9]+\\]'] })).results
}

/** A promise of a capability that is not built yet may be missing; nothing else may. */
function isBroken({ id, state }: Guarantee, verdicts: ReadonlyMap<string, Verdict>): boolean {
  const verdict = verdicts.get(id)
  return verdict === 'fail' || (verdict === 'missing' && state === 'built')
}

const guarantees = readGuarantees()
const { tests } = await results()
const verdicts = judge(guarantees, tests)
for (const guarantee of guarantees) {
  const verdict = verdicts.get(guarantee.id)!
  const shown = verdict === 'missing' && guarantee.state === 'later' ? 'missing (later)' : verdict
  console.log(`${guarantee.id.padEnd(4)}  ${shown.padEnd(15)}  ${guarantee.text}`)
}
const count = (verdict: Verdict): number => [...verdicts.values()].filter((one) => one === verdict).length
const failed = guarantees.filter((guarantee) => isBroken(guarantee, verdicts)).length
console.log(`\n${summary({ passed: count('pass'), failed, skipped: count('skipped') })}`)
if (isJson) console.log(JSON.stringify({ ids: Object.fromEntries(verdicts) }))
process.exitCode = failed === 0 ? 0 : 1
