// The planted bugs of jobs.

import { type Canary, swap } from '../canary.ts'
import type { GeneralCheckName } from '../finish.ts'
import type { CheckName } from './checks.ts'
import {
  blindEnqueue,
  completeBeforeCommit,
  deafCancel,
  dropRejection,
  enqueueOutsideTransaction,
  keyPerAttempt,
  rewriteSharedSettle,
} from './patches.ts'

const clockErrorMs: Readonly<Record<string, number>> = { w1: -120_000, w2: 120_000 }

function byClientClock(text: string, slot: string): string {
  if (!text.includes('pawl.now()')) throw new Error(`A canary found no clock in\n${text}`)
  return text.replaceAll('pawl.now()', `to_timestamp(${(Date.now() + (clockErrorMs[slot] ?? 0)) / 1000}::double precision)`)
}

const unfenced = swap('and j.fence = g.fence', '')

const sameFence = swap(/fence = (\(select )?pawl\.next_fence\(\)\)?/, 'fence = greatest(j.fence, 1)')

export const canaries: readonly Canary<CheckName | GeneralCheckName>[] = [
  {
    name: 'no-fence',
    bug: 'A settle names the job and not the fence.',
    proves: 'A result that is stored by somebody who no longer holds the job is seen.',
    caughtBy: 'settled by its holder',
    story: 'zombie',
    statements: { settle: unfenced, 'settle-failed': unfenced },
    functions: { complete_job: swap(/and j\.fence \S+ p_fence/, ''), guard_job: swap('and j.fence = p_fence', '') },
    inProcess: () => rewriteSharedSettle(unfenced),
  },
  {
    name: 'fence-reused',
    bug: 'The fence is given once and kept, as if the name of the holder were enough.',
    proves: 'Fences are seen to be new with every claim, also when one process takes its own job again.',
    caughtBy: 'fences never repeat',
    story: 'zombie',
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
    story: 'calm',
    statements: { 'open-worker': byClientClock, beat: byClientClock, claim: byClientClock, 'claim-suspect': byClientClock },
  },
  {
    name: 'settle-before-commit',
    bug: 'The completion of a tx handler commits before its effects do.',
    proves: 'Effect and completion are seen to be one transaction.',
    caughtBy: 'effect and completion in one transaction',
    story: 'calm',
    inProcess: completeBeforeCommit,
  },
  {
    name: 'renewal-revives-closed-incarnation',
    bug: 'A renewal extends the lease of an incarnation that was closed.',
    proves: 'A closed incarnation is seen to stay closed, although it held nothing.',
    caughtBy: 'closed incarnations stay closed',
    story: 'late renewal',
    statements: { beat: swap('and w.closed_at is null', '') },
  },
  {
    name: 'skip-locked-removed',
    bug: 'A claim waits for rows that somebody else has locked.',
    proves: "A claim that waits behind a stranger's transaction is seen.",
    caughtBy: 'claims wait for nobody',
    story: 'stranger',
    statements: { claim: swap('skip locked', ''), 'claim-suspect': swap('skip locked', '') },
  },
  {
    name: 'blind-retry-after-commit-unknown',
    bug: 'An enqueue whose answer was lost is sent again.',
    proves: 'A job that is there twice is seen although each of the two runs once.',
    caughtBy: 'nothing lost',
    story: 'lost answer',
    inRig: blindEnqueue,
  },
  {
    name: 'attempt-burnt-for-bystanders',
    bug: 'Jobs whose process died are claimed in batches again, beside the one that killed it.',
    proves: 'A crash that decides, and that another job may have caused, is seen.',
    caughtBy: 'deciding runs alone',
    story: 'poison',
    statements: { rescue: swap(/suspect = case when l\.is_crash[^\n]*/, 'suspect = false,') },
  },
  {
    name: 'release-burns-attempt',
    bug: 'A job that is given back unstarted keeps the attempt that its claim counted.',
    proves: 'Attempts are recounted from every single change.',
    caughtBy: 'attempts add up',
    story: 'drain',
    statements: { 'settle-failed': swap("g.outcome in ('snoozed', 'released')", "g.outcome = 'snoozed'") },
  },
  {
    name: 'cancel-ignored-on-completion',
    bug: 'A cancel of a running job is answered with ok and changes nothing.',
    proves: 'An effect after an accepted cancel is seen.',
    caughtBy: 'cancel respected',
    story: 'cancel',
    inRig: deafCancel,
  },
  {
    name: 'settle-forgets-history',
    bug: 'A settle deletes the job and writes no history row.',
    proves: 'A job that vanished is seen.',
    caughtBy: 'nothing lost',
    story: 'calm',
    statements: { settle: swap(/from gone o\n\)/, 'from gone o\n  where false\n)') },
  },
  {
    name: 'settle-writes-history-twice',
    bug: 'A settle writes two history rows for one job.',
    proves: 'A job that ended twice is seen.',
    caughtBy: 'one end each',
    story: 'calm',
    statements: { settle: swap(/from gone o\n\)/, 'from gone o, generate_series(1, 2)\n)') },
  },
  {
    name: 'refusal-ignored-at-commit',
    bug: 'A completion that matches no row is not an error, and the transaction commits its effects.',
    proves: 'An effect that a late holder commits beside the one that counts is seen.',
    caughtBy: 'applied once',
    story: 'late commit',
    functions: { complete_job: swap(/if not found then[\s\S]*?end if;/, '') },
  },
  {
    name: 'rescue-forgets-jobs',
    bug: 'The incarnation of a dead worker is closed, and its jobs stay with it.',
    proves: 'Jobs that never come to an end are seen.',
    caughtBy: 'all at rest',
    story: 'kill',
    statements: { rescue: swap(/where j\.ctid = l\.ctid/, 'where false and j.ctid = l.ctid') },
  },
  {
    name: 'dead-at-first-crash',
    bug: 'A job is dead as soon as one process has died with it.',
    proves: 'A death before the limit of the kind is seen.',
    caughtBy: 'dead for a cause',
    story: 'kill',
    // The parameter stays in use, so that its number still means something.
    statements: { rescue: swap(/coalesce\(j\.max_crashes, (\$\d+::integer)\)/g, '(1 + 0 * $1)') },
  },
  {
    name: 'key-per-attempt',
    bug: 'The idempotency key of a job changes with every attempt.',
    proves: 'A delivery that its receiver could not tell from a new one is seen.',
    caughtBy: 'delivered outside',
    story: 'zombie',
    inProcess: keyPerAttempt,
  },
  {
    name: 'enqueue-outside-transaction',
    bug: "An enqueue in the caller's transaction commits at once on a connection of its own.",
    proves: 'A job whose enqueuing process died before its commit is seen.',
    caughtBy: 'nothing lost',
    story: 'producer dies',
    inProcess: enqueueOutsideTransaction,
  },
  {
    name: 'rejection-dropped',
    bug: 'A worker lets a promise reject that nobody awaits.',
    proves: 'A process that ends by itself is seen, although it is started again at once and loses nothing.',
    caughtBy: 'no process fails',
    story: 'calm',
    inProcess: dropRejection,
  },
]
