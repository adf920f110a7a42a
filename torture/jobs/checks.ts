// The checks. Each is a promise of Pawl as a program over the facts: how much it looked at, and what it found against the promise.

import type { Entry } from '../history.ts'
import type { Violation } from '../scenario.ts'
import { attemptsAddUp, deadForCause, decidingAlone } from './attempt-checks.ts'
import { type Facts, type Find, groupBy, type StoredJob } from './facts.ts'
import { exactKinds, outsideKinds } from './kinds.ts'

/** Gives how many things it looked at. */
type Check = (facts: Facts, find: Find) => number

const isExact = (kind: string) => (exactKinds as readonly string[]).includes(kind)
const isOutside = (kind: string) => (outsideKinds as readonly string[]).includes(kind)

/** Clocks are read at slightly different moments within a statement; a process may be off the processor meanwhile. */
const clockToleranceMs = 10_000

export const checks = {
  'nothing lost': nothingLost,
  'one end each': oneEndEach,
  'all at rest': allAtRest,
  'applied once': appliedOnce,
  'effect and completion in one transaction': oneTransaction,
  'settled by its holder': settledByHolder,
  'delivered outside': deliveredOutside,
  'fences never repeat': fencesNeverRepeat,
  'attempts add up': attemptsAddUp,
  'dead for a cause': deadForCause,
  'deciding runs alone': decidingAlone,
  'cancel respected': cancelRespected,
  'leases in database time': leasesInDatabaseTime,
  'closed incarnations stay closed': closedStayClosed,
  'claims wait for nobody': claimsWaitForNobody,
} satisfies Record<string, Check>

export type CheckName = keyof typeof checks

export function check(facts: Facts): { checks: Record<string, number>; violations: Violation<CheckName>[] } {
  const counted: Record<string, number> = {}
  const violations: Violation<CheckName>[] = []
  for (const [name, run] of Object.entries(checks)) {
    counted[name] = run(facts, (message) => violations.push({ check: name as CheckName, message }))
  }
  return { checks: counted, violations }
}

/** Every acknowledged job exists, once; a refused one does not; of an unknown outcome all or nothing; and nothing came from nowhere. */
function nothingLost(facts: Facts, find: Find): number {
  const byKey = groupBy([...facts.finished, ...facts.live], (job) => job.key ?? '')
  const ends = enqueueEnds(facts.entries)
  const asked = new Set<string>()
  for (const { entry, ph } of ends) {
    const keys = entry.keys as readonly string[]
    const counts = keys.map((key) => byKey.get(key)?.length ?? 0)
    for (const key of keys) asked.add(key)
    const text = `enqueue ${String(entry.batch)} (${String(entry.kind)}, ${String(entry.via)}) ${entry.ph === 'invoke' ? 'died with its process' : `was answered ${entry.ph}`}`
    if (counts.some((count) => count > 1)) find(`${text}, and one of its jobs is there ${Math.max(...counts)} times`)
    const present = counts.filter((count) => count > 0).length
    if (ph === 'ok' && present < keys.length) find(`${text}, and ${keys.length - present} of its ${keys.length} jobs are lost`)
    if (ph === 'fail' && present > 0) find(`${text}, and ${present} of its jobs are there`)
    if (ph === 'info' && present > 0 && present < keys.length)
      find(`${text}, and half of it is there: ${present} of ${keys.length}`)
    if (entry.via === 'own' && facts.produced.has(String(entry.batch)) !== present > 0)
      find(`${text}, and its own row and its jobs did not commit together`)
  }
  for (const [key, jobs] of byKey) if (!asked.has(key)) find(`job ${jobs[0]!.id} was enqueued by nobody (key ${key})`)
  return ends.length
}

/**
 * How each enqueue ended. One that has no answer died with its process, and the place of the death tells: killed between insert and
 * commit of its own transaction nobody can have committed it; killed after the answer to an enqueue without one it is there.
 */
function enqueueEnds(entries: readonly Entry[]): { entry: Entry; ph: 'ok' | 'fail' | 'info' }[] {
  const enqueues = entries.filter((entry) => entry.op === 'enqueue')
  const answered = new Set(enqueues.filter((entry) => entry.ph !== 'invoke').map((entry) => String(entry.batch)))
  const killed = new Set(
    entries
      .filter((entry) => entry.op === 'fault' && entry.probe === 'jobs.enqueue.sent' && entry.kind === 'kill')
      .map((entry) => entry.proc),
  )
  return enqueues.flatMap((entry): { entry: Entry; ph: 'ok' | 'fail' | 'info' }[] => {
    if (entry.ph !== undefined && entry.ph !== 'invoke') return [{ entry, ph: entry.ph }]
    if (answered.has(String(entry.batch))) return []
    return [{ entry, ph: killed.has(entry.proc) ? (entry.via === 'own' ? 'fail' : 'ok') : 'info' }]
  })
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

/** Not grow: the clock that they carry may be set back. */
function fencesNeverRepeat(facts: Facts, find: Find): number {
  let looked = 0
  for (const [id, transitions] of facts.byJob) {
    const seen = new Set<bigint>()
    let last = -1n
    for (const { newFence, from, to, actor } of transitions) {
      if (newFence === null) continue
      looked++
      const mustBeNew = to === 'running' || from === 'running' || newFence !== last
      if (mustBeNew && seen.has(newFence)) find(`job ${id}: the fence ${newFence} came again (${from} -> ${to} by ${actor})`)
      seen.add(newFence)
      last = newFence
    }
  }
  return looked
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
    // A statement that read the clock just before it was stepped was recorded just after: it is off by that step.
    const steps = [0, ...facts.steps.filter((step) => isNear(step.at, lease.at)).map((step) => -step.ms)]
    const isRight = (ms: number) => steps.some((step) => Math.abs(ms - step) <= clockToleranceMs)
    if (!isRight(offMs))
      find(
        `worker ${lease.worker} (${lease.name}) was seen at a time ${Math.round(offMs / 1000)} s away from the clock of the database`,
      )
    if (!isRight(lengthMs - facts.leaseMs))
      find(
        `worker ${lease.worker} (${lease.name}) has a lease of ${facts.leaseMs} ms, and its end was set ${lengthMs} ms ahead of the clock of the database`,
      )
  }
  return kept.length
}

const isNear = (at: number, other: number) => Math.abs(at - other) < 3000

function closedStayClosed(facts: Facts, find: Find): number {
  for (const { worker, name, oldUntil, newUntil, wasClosed, isClosed } of facts.leases) {
    if (!wasClosed) continue
    if (!isClosed) find(`worker ${worker} (${name}) was closed and opened again`)
    else if (oldUntil !== null && newUntil > oldUntil) find(`worker ${worker} (${name}) renewed its lease after it was closed`)
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
