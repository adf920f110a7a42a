// The checks. Each is a promise of Pawl as a program over the facts: how much it looked at, and what it found against the promise.

import { type EndedAttempt, type Facts, groupBy, type StoredJob, type Transition } from './facts.ts'
import { exactKinds, outsideKinds } from './kinds.ts'

export interface Violation {
  readonly check: CheckName
  readonly message: string
}

type Find = (message: string) => void
/** Gives how many things it looked at. */
type Check = (facts: Facts, find: Find) => number

const isExact = (kind: string) => (exactKinds as readonly string[]).includes(kind)
const isOutside = (kind: string) => (outsideKinds as readonly string[]).includes(kind)

/** Clocks are read at slightly different moments within a statement; a process may be off the processor meanwhile. */
const clockToleranceMs = 10_000
const endedToleranceMs = 300

export const checks = {
  'nothing lost': nothingLost,
  'one end each': oneEndEach,
  'all at rest': allAtRest,
  'applied once': appliedOnce,
  'effect and completion in one transaction': oneTransaction,
  'settled by its holder': settledByHolder,
  'delivered outside': deliveredOutside,
  'fences grow': fencesGrow,
  'attempts add up': attemptsAddUp,
  'dead for a cause': deadForCause,
  'suspects alone': suspectsAlone,
  'cancel respected': cancelRespected,
  'leases in database time': leasesInDatabaseTime,
  'ended leases stay ended': endedLeasesStayEnded,
  'claims wait for nobody': claimsWaitForNobody,
} satisfies Record<string, Check>

export type CheckName = keyof typeof checks | 'indexes sound'

export function check(facts: Facts): { checks: Record<string, number>; violations: Violation[] } {
  const counted: Record<string, number> = {}
  const violations: Violation[] = []
  for (const [name, run] of Object.entries(checks)) {
    counted[name] = run(facts, (message) => violations.push({ check: name as CheckName, message }))
  }
  return { checks: counted, violations }
}

/** Every acknowledged job exists, once; a refused one does not; of an unknown outcome all or nothing; and nothing came from nowhere. */
function nothingLost(facts: Facts, find: Find): number {
  const byKey = groupBy([...facts.finished, ...facts.live], (job) => job.key ?? '')
  const ends = facts.entries.filter((entry) => entry.op === 'enqueue' && entry.ph !== 'invoke')
  const asked = new Set<string>()
  for (const entry of ends) {
    const keys = entry.keys as readonly string[]
    const counts = keys.map((key) => byKey.get(key)?.length ?? 0)
    for (const key of keys) asked.add(key)
    const text = `enqueue ${String(entry.batch)} (${String(entry.kind)}, ${String(entry.via)}) was answered ${entry.ph}`
    if (counts.some((count) => count > 1)) find(`${text}, and one of its jobs is there ${Math.max(...counts)} times`)
    const present = counts.filter((count) => count > 0).length
    if (entry.ph === 'ok' && present < keys.length)
      find(`${text}, and ${keys.length - present} of its ${keys.length} jobs are lost`)
    if (entry.ph === 'fail' && present > 0) find(`${text}, and ${present} of its jobs are there`)
    if (entry.ph === 'info' && present > 0 && present < keys.length)
      find(`${text}, and half of it is there: ${present} of ${keys.length}`)
    if (entry.via === 'own' && facts.produced.has(String(entry.batch)) !== present > 0)
      find(`${text}, and its own row and its jobs did not commit together`)
  }
  for (const [key, jobs] of byKey) if (!asked.has(key)) find(`job ${jobs[0]!.id} was enqueued by nobody (key ${key})`)
  return ends.length
}

function oneEndEach(facts: Facts, find: Find): number {
  const live = new Set(facts.live.map((job) => job.id))
  for (const [id, rows] of groupBy(facts.finished, (job) => job.id)) {
    if (rows.length > 1)
      find(`job ${id} has ${rows.length} history rows: ${rows.map((row) => `${row.state} by fence ${row.fence}`).join(', ')}`)
    if (live.has(id)) find(`job ${id} is in history and still live`)
  }
  return facts.finished.length
}

function allAtRest(facts: Facts, find: Find): number {
  const stuck = facts.live.filter((job) => job.state !== 'dead')
  if (!facts.isDrained || stuck.length > 0) {
    find(
      `${stuck.length} job(s) did not come to an end after healing: ${stuck
        .slice(0, 5)
        .map((job) => `${job.id} (${job.kind}) is ${job.state}`)
        .join(', ')}`,
    )
  }
  for (const slot of facts.notStopped) find(`worker ${slot} did not stop in order after healing`)
  return facts.finished.length + facts.live.length
}

/** Done: exactly one effect. Otherwise: none. */
function appliedOnce(facts: Facts, find: Find): number {
  const effects = groupBy(facts.effects, (effect) => effect.job)
  const jobs = [...facts.finished, ...facts.live].filter((job) => isExact(job.kind))
  for (const job of jobs) {
    const found = effects.get(job.id) ?? []
    const wanted = job.state === 'done' ? 1 : 0
    if (found.length !== wanted) {
      find(
        `job ${job.id} (${job.kind}) is ${job.state} and has ${found.length} effect(s): ${found.map((effect) => `fence ${effect.fence} in ${effect.proc}`).join(', ')}`,
      )
    }
  }
  const known = new Set(jobs.map((job) => job.id))
  for (const id of effects.keys()) if (!known.has(id)) find(`there is an effect of job ${id}, which is not there`)
  return jobs.length
}

function oneTransaction(facts: Facts, find: Find): number {
  const done = doneById(facts)
  for (const effect of facts.effects) {
    const job = done.get(effect.job)
    if (job === undefined) continue
    const removal = facts.byJob.get(effect.job)?.find((transition) => transition.to === null)
    if (removal?.xid !== effect.xid)
      find(`job ${effect.job} (${effect.kind}): its effect is of transaction ${effect.xid}, its completion of ${removal?.xid}`)
    if (job.fence !== effect.fence)
      find(
        `job ${effect.job} (${effect.kind}): its effect was made under fence ${effect.fence}, and it was done under ${job.fence}`,
      )
  }
  return facts.effects.length
}

/** The stored result names the fence that its handler was given, and the process that stored it is the one that held the job. */
function settledByHolder(facts: Facts, find: Find): number {
  let looked = 0
  for (const job of facts.finished) {
    if (job.state !== 'done') continue
    looked++
    if (job.resultFence !== job.fence)
      find(`job ${job.id} (${job.kind}) was held under fence ${job.fence}, and the result of fence ${job.resultFence} was stored`)
    const removal = facts.byJob.get(job.id)?.find((transition) => transition.to === null)
    if (removal === undefined) continue
    const holder = removal.oldHolder === null ? 'nobody' : (facts.workerNames.get(removal.oldHolder) ?? '?')
    const actor = removal.actor.split(' ')[0]
    if (removal.from !== 'running' || holder !== actor)
      find(`job ${job.id} (${job.kind}) was ${removal.from}, held by ${holder}, and ${actor} settled it`)
  }
  return looked
}

/** At least once when done, at most once per claim, always with the same key, never under a fence that was not claimed. */
function deliveredOutside(facts: Facts, find: Find): number {
  const byJob = groupBy(facts.deliveries, (delivery) => delivery.job)
  for (const job of facts.finished.filter((job) => isOutside(job.kind) && job.state === 'done')) {
    if (!byJob.get(job.id)?.some((delivery) => delivery.fence === job.fence))
      find(`job ${job.id} (${job.kind}) is done and its effect outside was never made under fence ${job.fence}`)
  }
  const owners = new Map<string, string>()
  for (const [id, deliveries] of byJob) {
    const claimed = new Set(
      (facts.byJob.get(id) ?? [])
        .filter((transition) => transition.to === 'running')
        .map((transition) => String(transition.newFence)),
    )
    for (const [fence, same] of groupBy(deliveries, (delivery) => delivery.fence)) {
      if (!claimed.has(fence)) find(`job ${id} was delivered under fence ${fence}, which no claim gave out`)
      if (same.length > 1) find(`job ${id} was delivered ${same.length} times under the one fence ${fence}`)
    }
    const keys = new Set(deliveries.map((delivery) => delivery.idempotencyKey))
    if (keys.size > 1) find(`job ${id} was delivered under different idempotency keys: ${[...keys].join(', ')}`)
    for (const key of keys) {
      if (owners.has(key)) find(`jobs ${owners.get(key)} and ${id} share the idempotency key ${key}`)
      owners.set(key, id)
    }
  }
  return facts.deliveries.length
}

function fencesGrow(facts: Facts, find: Find): number {
  let looked = 0
  for (const [id, transitions] of facts.byJob) {
    let highest = -1n
    for (const transition of transitions) {
      if (transition.newFence === null) continue
      looked++
      const mustGrow = transition.to === 'running' || transition.from === 'running'
      if (mustGrow ? transition.newFence <= highest : transition.newFence < highest) {
        find(
          `job ${id}: the fence went from ${highest} to ${transition.newFence} (${transition.from} -> ${transition.to} by ${transition.actor})`,
        )
      }
      highest = transition.newFence
    }
  }
  return looked
}

/** Replays every change: a claim counts one attempt; what was given back or snoozed returns it; a failure or a crash keeps it. */
function attemptsAddUp(facts: Facts, find: Find): number {
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
  const outcome = row?.outcome ?? 'given back'
  const isReturned = outcome === 'given back' || outcome === 'snoozed' || outcome === 'interrupted'
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
function deadForCause(facts: Facts, find: Find): number {
  const ended = groupBy(facts.attempts, (attempt) => `${attempt.job} ${attempt.fence}`)
  const deaths = facts.transitions.filter((transition) => transition.to === 'dead')
  for (const death of deaths) {
    const row = ended.get(`${death.job} ${death.oldFence}`)?.[0]
    const text = `job ${death.job} (${death.kind}) is dead after ${death.newAttempt} attempts and ${death.newCrashes} crashes, the last ${row?.outcome ?? 'not recorded'}`
    if (row === undefined) find(text)
    else if (row.outcome === 'failed' && death.kind !== 'doomed')
      find(`${text}: its handler never failed by itself so often (${firstLine(row.error)})`)
    else if (row.outcome === 'crashed') {
      // Of the crashes that count, the first may have been somebody else's; in each of the others it ran alone.
      const own = facts.byJob
        .get(death.job)!
        .filter(
          (claim) =>
            claim.to === 'running' && claim.isSuspect && ended.get(`${claim.job} ${claim.newFence}`)?.[0]?.outcome === 'crashed',
        ).length
      if (own < (death.newCrashes ?? 0) - 1) find(`${text}: in only ${own} of them it was alone`)
    }
  }
  return deaths.length
}

/**
 * Whatever died once with its process is claimed alone from then on, until it has ended an attempt in order: only itself can be blamed
 * for the next crash.
 */
function suspectsAlone(facts: Facts, find: Find): number {
  const held = heldIntervals(facts)
  const byHolder = groupBy(held, (interval) => String(interval.claim.newHolder))
  const ended = groupBy(facts.attempts, (attempt) => `${attempt.job} ${attempt.fence}`)
  let looked = 0
  for (const [id, intervals] of groupBy(held, (interval) => interval.claim.job)) {
    let crashes = 0
    for (const { claim, end } of intervals) {
      if (claim.oldCrashes === 0) crashes = 0
      if (claim.isSuspect && (claim.neighbours ?? 0) > 0)
        find(`job ${id} (${claim.kind}) is a suspect and was claimed beside ${claim.neighbours} other(s) by ${claim.actor}`)
      if (claim.isSuspect) looked++
      if (end === undefined || end.to === null) continue
      const outcome = ended.get(`${id} ${claim.newFence}`)?.[0]?.outcome
      if (outcome !== 'crashed') {
        if (outcome !== undefined && outcome !== 'interrupted') crashes = 0
        continue
      }
      crashes++
      const others = (byHolder.get(String(claim.newHolder)) ?? []).filter(
        (other) => other.claim.job !== id && other.claim.n < end.n && (other.end?.n ?? Number.POSITIVE_INFINITY) > claim.n,
      )
      if (crashes > 1 && others.length > 0) {
        find(
          `job ${id} (${claim.kind}): its crash number ${crashes} was counted although its process held ${others.length} other job(s), among them ${others[0]!.claim.job} (${others[0]!.claim.kind})`,
        )
      }
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

/** After an accepted cancel the job is cancelled, was not claimed again, and has no effect in the database. */
function cancelRespected(facts: Facts, find: Find): number {
  const accepted = facts.entries.filter((entry) => entry.op === 'cancel' && entry.ph === 'ok')
  const finished = new Map(facts.finished.map((job) => [job.id, job]))
  const effects = groupBy(facts.effects, (effect) => effect.job)
  for (const entry of accepted) {
    const id = String(entry.job)
    const job = finished.get(id)
    if (job?.state !== 'cancelled')
      find(`job ${id}: its cancel was answered ok (it was ${String(entry.was)}), and it is ${job?.state ?? 'not finished'}`)
    if (effects.has(id)) find(`job ${id} was cancelled and has an effect all the same`)
  }
  return accepted.length
}

function leasesInDatabaseTime(facts: Facts, find: Find): number {
  const kept = facts.leases.filter((lease) => !lease.isClosed)
  for (const lease of kept) {
    const offMs = lease.seenAt - lease.pawlAt
    const lengthMs = lease.newUntil - lease.pawlAt
    if (Math.abs(offMs) > clockToleranceMs)
      find(
        `worker ${lease.worker} (${lease.name}) was seen at a time ${Math.round(offMs / 1000)} s away from the clock of the database`,
      )
    if (Math.abs(lengthMs - facts.leaseMs) > clockToleranceMs)
      find(
        `worker ${lease.worker} (${lease.name}) has a lease of ${facts.leaseMs} ms, and its end was set ${lengthMs} ms ahead of the clock of the database`,
      )
  }
  return kept.length
}

function endedLeasesStayEnded(facts: Facts, find: Find): number {
  for (const lease of facts.leases) {
    if (lease.wasClosed && !lease.isClosed) find(`worker ${lease.worker} (${lease.name}) was closed and opened again`)
    if (lease.oldUntil === null || lease.isClosed || lease.newUntil <= lease.oldUntil) continue
    const nearStep = facts.stepsAt.some((at) => Math.abs(at - lease.at) < 3000)
    const lateMs = lease.seenAt - lease.oldUntil
    if (lateMs > endedToleranceMs && !nearStep)
      find(`worker ${lease.worker} (${lease.name}) renewed its lease ${lateMs} ms after it had ended`)
  }
  return facts.leases.length
}

function claimsWaitForNobody(facts: Facts, find: Find): number {
  const waits = facts.entries.filter((entry) => entry.op === 'claim waits')
  for (const [application, entries] of groupBy(waits, (entry) => String(entry.application))) {
    find(
      `the ${application} waited for a row that somebody else had locked (job ${String(entries[0]!.behind)}), seen ${entries.length} time(s)`,
    )
  }
  return facts.transitions.filter((transition) => transition.to === 'running').length
}

function doneById(facts: Facts): Map<string, StoredJob> {
  return new Map(facts.finished.filter((job) => job.state === 'done').map((job) => [job.id, job]))
}

function firstLine(text: string | null): string {
  return (text ?? 'no error').split('\n')[0]!
}
