// The checks of attempts and crashes: what each change did to them, and whom a crash may be held against.

import { type EndedAttempt, type Facts, type Find, groupBy, type Transition } from './facts.ts'
import { bystanderCrashes, poisonCrashes } from './kinds.ts'

/** Replays every change: a claim counts one attempt; what was given back or snoozed returns it; a failure or a crash keeps it. */
export function attemptsAddUp(facts: Facts, find: Find): number {
  const ended = groupBy(facts.attempts, (attempt) => `${attempt.job} ${attempt.fence}`)
  const started = new Set(
    facts.entries.filter((entry) => entry.op === 'start').map((entry) => `${String(entry.job)} ${String(entry.fence)}`),
  )
  for (const [key, rows] of ended) {
    if (rows.length > 1)
      find(`attempt ${key} (job, fence) ended ${rows.length} times: ${rows.map((row) => row.outcome).join(', ')}`)
    if (rows[0]!.outcome === 'failed' && !started.has(key))
      find(
        `attempt ${key} (job, fence) of ${rows[0]!.kind} counts as failed, and its handler was never called: ${firstLine(rows[0]!.error)}`,
      )
  }
  for (const transition of facts.transitions) {
    if (transition.from === null || transition.to === null) continue
    const { from, to, oldAttempt, newAttempt, oldCrashes, newCrashes, job } = transition
    const change = `job ${job}: ${from} -> ${to} by ${transition.actor} under fence ${transition.oldFence}`
    const by = (newAttempt ?? 0) - (oldAttempt ?? 0)
    if (!isLegal(from, to)) find(`${change} is not a legal change`)
    else if (to === 'running') {
      if (by !== 1 || oldCrashes !== newCrashes) find(`${change} counted ${by} attempts`)
    } else if (from === 'running')
      attemptEnd(change, by, (newCrashes ?? 0) - (oldCrashes ?? 0), ended.get(`${job} ${transition.oldFence}`)?.[0], find)
    else if (from === 'dead' ? newAttempt !== 0 || newCrashes !== 0 : by !== 0 || oldCrashes !== newCrashes)
      find(`${change} changed its attempts from ${oldAttempt} to ${newAttempt}`)
  }
  return facts.transitions.length
}

function attemptEnd(change: string, by: number, crashes: number, row: EndedAttempt | undefined, find: Find): void {
  // The attempt of a process that was only cut off is recorded as interrupted later; the rescue counted a crash.
  const isExcused =
    row?.outcome === 'interrupted' && row.error?.endsWith('it is alive and was only cut off from the database') === true
  const outcome = isExcused ? 'crashed' : (row?.outcome ?? 'given back')
  const isReturned = outcome === 'given back' || outcome === 'interrupted'
  if (by !== (isReturned ? -1 : 0)) find(`${change}: it was ${outcome}, and its attempts changed by ${by}`)
  if (crashes !== (outcome === 'crashed' ? 1 : 0)) find(`${change}: it was ${outcome}, and its crashes changed by ${crashes}`)
}

function isLegal(from: string, to: string): boolean {
  const graph: Record<string, readonly string[]> = {
    scheduled: ['ready'],
    ready: ['running'],
    running: ['scheduled', 'ready', 'dead'],
    dead: ['ready'],
  }
  return graph[from]?.includes(to) ?? false
}

/** A job dies of its own failures or of its own crashes: nothing that happens around it may use it up. */
export function deadForCause(facts: Facts, find: Find): number {
  const ended = groupBy(facts.attempts, (attempt) => `${attempt.job} ${attempt.fence}`)
  const deaths = facts.transitions.filter((transition) => transition.to === 'dead')
  for (const death of deaths) {
    const row = ended.get(`${death.job} ${death.oldFence}`)?.[0]
    const text = `job ${death.job} (${death.kind}) is dead after ${death.newAttempt} attempts and ${death.newCrashes} crashes, the last ${row?.outcome ?? 'not recorded'}`
    if (row === undefined) find(text)
    else if (row.outcome === 'failed' && death.kind !== 'doomed')
      find(`${text}: its handler never failed by itself so often (${firstLine(row.error)})`)
    else if (row.outcome === 'crashed') {
      // Of the crashes that count, the first may have been somebody else's; in each of the others it was a suspect, and alone in the last.
      const own = facts.byJob
        .get(death.job)!
        .filter(
          (claim) =>
            claim.to === 'running' && claim.isSuspect && ended.get(`${claim.job} ${claim.newFence}`)?.[0]?.outcome === 'crashed',
        ).length
      if (own < (death.newCrashes ?? 0) - 1) find(`${text}: in only ${own} of them it was a suspect`)
      const limit = death.kind === 'poison' ? poisonCrashes : bystanderCrashes
      if ((death.newCrashes ?? 0) < limit) find(`${text}: its kind may crash ${limit} times`)
    }
  }
  return deaths.length
}

/**
 * The crash that reaches the limit of a kind is one of a process that held nothing else: only the job itself can be blamed for it. Before
 * that, and while its process empties itself, others may be held beside it.
 */
export function decidingAlone(facts: Facts, find: Find): number {
  const held = heldIntervals(facts)
  const ended = groupBy(facts.attempts, (attempt) => `${attempt.job} ${attempt.fence}`)
  const outcomeOf = ({ claim }: Interval) => ended.get(`${claim.job} ${claim.newFence}`)?.[0]?.outcome
  const crashed = groupBy(
    held.filter((interval) => outcomeOf(interval) === 'crashed'),
    (interval) => String(interval.claim.newHolder),
  )
  let looked = 0
  for (const [id, intervals] of groupBy(held, (interval) => interval.claim.job)) {
    let strikes = 0
    for (const interval of intervals) {
      const { claim } = interval
      const limit = claim.kind === 'poison' ? poisonCrashes : bystanderCrashes
      if (claim.oldCrashes === 0) strikes = 0
      if (claim.isSuspect) looked++
      const outcome = outcomeOf(interval)
      if (outcome === 'crashed') strikes++
      else if (outcome !== undefined && outcome !== 'interrupted' && outcome !== 'snoozed') strikes = 0
      const others = (crashed.get(String(claim.newHolder)) ?? []).filter((other) => other.claim.job !== id)
      if (outcome !== 'crashed' || strikes < limit || others.length === 0) continue
      find(
        `job ${id} (${claim.kind}): its crash number ${strikes} of ${limit} was counted although its process held ${others.length} other job(s), among them ${others[0]!.claim.job} (${others[0]!.claim.kind})`,
      )
    }
  }
  return looked
}

interface Interval {
  readonly claim: Transition
  readonly end: Transition | undefined
}

function heldIntervals(facts: Facts): Interval[] {
  const intervals: Interval[] = []
  for (const transitions of facts.byJob.values()) {
    for (const [index, transition] of transitions.entries()) {
      if (transition.to === 'running') intervals.push({ claim: transition, end: transitions[index + 1] })
    }
  }
  return intervals
}

function firstLine(text: string | null): string {
  return (text ?? 'no error').split('\n')[0]!
}
