// Known bugs, planted on purpose. A checker that does not find them would not find the real ones either. Product code knows nothing of
// them: statements are rewritten on their way to the database in the process under test, functions are replaced in its database.

import type { CheckName } from '../checker.ts'

export interface Canary {
  readonly name: string
  /** The bug, in a sentence. */
  readonly bug: string
  /** What finding it proves of the checker. */
  readonly proves: string
  /** The check that must find it: to be late, or broken in some other way, is not to be caught. */
  readonly caughtBy: CheckName
  /** The scenario of directed/ that makes it show for certain. */
  readonly scenario: string
  /** By statement file. */
  readonly statements?: Readonly<Record<string, (text: string, slot: string) => string>>
  /** SQL functions, by name. */
  readonly functions?: Readonly<Record<string, (definition: string) => string>>
  /** Anything that is neither; plant.ts knows them by these names. */
  readonly patches?: readonly ('complete before commit' | 'blind enqueue' | 'deaf cancel')[]
}

/** A rewrite that changes nothing would be a canary that cannot sing: it fails loudly when the SQL has changed. */
function swap(from: string | RegExp, to: string): (text: string) => string {
  return (text) => {
    const changed = text.replace(from, to)
    if (changed === text) throw new Error(`A canary found nothing to rewrite: ${from} is not in\n${text}`)
    return changed
  }
}

const clockErrorMs: Readonly<Record<string, number>> = { w1: -120_000, w2: 120_000 }

function byClientClock(text: string, slot: string): string {
  if (!text.includes('pawl.now()')) throw new Error(`A canary found no clock in\n${text}`)
  return text.replaceAll('pawl.now()', `to_timestamp(${(Date.now() + (clockErrorMs[slot] ?? 0)) / 1000}::double precision)`)
}

const sameFence = swap(/fence = (\(select )?nextval\('pawl\.fence'\)\)?/, 'fence = greatest(j.fence, 1)')

export const canaries: readonly Canary[] = [
  {
    name: 'no-fence',
    bug: 'A settle names the job and not the fence.',
    proves: 'A result that is stored by somebody who no longer holds the job is seen.',
    caughtBy: 'settled by its holder',
    scenario: 'zombie',
    statements: { settle: swap('and j.fence = g.fence', ''), 'settle-failed': swap('and j.fence = g.fence', '') },
    functions: { complete_job: swap('and j.fence = p_fence', ''), guard_job: swap('and j.fence = p_fence', '') },
  },
  {
    name: 'fence-reused',
    bug: 'The fence is given once and kept, as if the name of the holder were enough.',
    proves: 'Fences are seen to grow with every claim, also when one process takes its own job again.',
    caughtBy: 'fences grow',
    scenario: 'zombie',
    statements: {
      claim: sameFence,
      'claim-suspect': sameFence,
      rescue: sameFence,
      'settle-failed': sameFence,
      'release-unknown': sameFence,
    },
  },
  {
    name: 'client-clock',
    bug: "Leases are written and judged by the worker's own clock; two workers' clocks are two minutes wrong.",
    proves: 'Every end of a lease is seen to be in database time.',
    caughtBy: 'leases in database time',
    scenario: 'calm',
    statements: { 'open-worker': byClientClock, beat: byClientClock, claim: byClientClock, 'claim-suspect': byClientClock },
  },
  {
    name: 'settle-before-commit',
    bug: 'The completion of a tx handler commits before its effects do.',
    proves: 'Effect and completion are seen to be one transaction.',
    caughtBy: 'effect and completion in one transaction',
    scenario: 'calm',
    patches: ['complete before commit'],
  },
  {
    name: 'renewal-revives-ended-lease',
    bug: 'A renewal extends a lease that had ended.',
    proves: 'An ended lease is seen to stay ended, although nobody took over meanwhile.',
    caughtBy: 'ended leases stay ended',
    scenario: 'lonely pause',
    statements: { beat: swap(/and w\.lease_until > pawl\.now\(\)/, '') },
  },
  {
    name: 'skip-locked-removed',
    bug: 'A claim waits for rows that somebody else has locked.',
    proves: "A claim that waits behind a stranger's transaction is seen.",
    caughtBy: 'claims wait for nobody',
    scenario: 'stranger',
    statements: { claim: swap('skip locked', ''), 'claim-suspect': swap('skip locked', '') },
  },
  {
    name: 'blind-retry-after-commit-unknown',
    bug: 'An enqueue whose answer was lost is sent again.',
    proves: 'A job that is there twice is seen although each of the two runs once.',
    caughtBy: 'nothing lost',
    scenario: 'lost answer',
    patches: ['blind enqueue'],
  },
  {
    name: 'attempt-burnt-for-bystanders',
    bug: 'Jobs whose process died are claimed in batches again, beside the one that killed it.',
    proves: 'A crash that is counted against a job that did not cause it is seen, before the job is dead.',
    caughtBy: 'suspects alone',
    scenario: 'poison',
    statements: { rescue: swap(/suspect = l\.close_reason[^\n]*/, 'suspect = false,') },
  },
  {
    name: 'release-burns-attempt',
    bug: 'A job that is given back unstarted keeps the attempt that its claim counted.',
    proves: 'Attempts are recounted from every single change.',
    caughtBy: 'attempts add up',
    scenario: 'drain',
    statements: { 'settle-failed': swap("g.outcome in ('snoozed', 'released')", "g.outcome = 'snoozed'") },
  },
  {
    name: 'cancel-ignored-on-completion',
    bug: 'A cancel of a running job is answered with ok and changes nothing.',
    proves: 'An effect after an accepted cancel is seen.',
    caughtBy: 'cancel respected',
    scenario: 'cancel',
    patches: ['deaf cancel'],
  },
  {
    name: 'settle-forgets-history',
    bug: 'A settle deletes the job and writes no history row.',
    proves: 'A job that vanished is seen.',
    caughtBy: 'nothing lost',
    scenario: 'calm',
    statements: { settle: swap(/from gone o\n\)/, 'from gone o\n  where false\n)') },
  },
]

export function canaryNamed(name: string): Canary {
  const canary = canaries.find((candidate) => candidate.name === name)
  if (canary === undefined) throw new Error(`There is no canary '${name}'. --list-canaries names them.`)
  return canary
}
