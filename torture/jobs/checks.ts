// The checks of jobs. Each is a promise as a program over the facts: it returns how much it checked and reports what breaks the promise.

import { type Check, count, groupBy, type Judged, judged, type RunEnd, readFacts, told } from '../checks.ts'
import type { Entry } from '../history.ts'
import { type Change, changesOf } from '../recorder.ts'
import type { Rig } from '../rig.ts'
import { crashesMax, exactKinds, outsideKinds } from './traffic.ts'

// ---- facts

type Transition = Change<'id' | 'kind' | 'state' | 'fence' | 'holder' | 'attempt' | 'crashes' | 'suspect'>
type Lease = Change<'id' | 'lease_until' | 'seen_at' | 'closed_at', 'now'>

/** done, cancelled, or the state of a live one. */
type StoredJob = Record<'id' | 'kind' | 'state' | 'fence', string> & { key: string | null; resultFence: string | null }

const jobOf = ({ old, new: now }: Transition): string => (now ?? old)!.id

function readJobFacts(rig: Rig, end: RunEnd) {
  return readFacts(rig, end, async (rows) => {
    const transitions: Transition[] = await changesOf(rows, 'job')
    const leases: Lease[] = await changesOf(rows, 'worker')
    const produced = await rows<{ key: string }>('select key from torture.produced')
    const attempts = await rows<Record<'attempt' | 'outcome' | 'kind', string> & { error: string | null }>(
      "select job_id || ' ' || fence as attempt, outcome, kind, error from pawl.job_attempt",
    )
    const outcomes: Change<'job_id' | 'fence' | 'outcome'>[] = await changesOf(rows, 'job_attempt')
    const rewritten = outcomes.filter(({ old, new: now }) => old?.outcome === 'crashed' && now?.outcome === 'interrupted')
    return {
      leaseMs: rig.options.leaseMs,
      transitions,
      byJob: groupBy(transitions, jobOf),
      leases,
      /** When the clock of the database was stepped, and by how much. */
      steps: await rows<{ at: Date; ms: string }>('select at, ms from torture.step'),
      produced: new Set(produced.map(({ key }) => key)),
      effects: await rows<Record<'job' | 'fence' | 'kind' | 'proc' | 'xid', string>>(
        'select job_id as job, fence, kind, proc, xid from torture.effect',
      ),
      finished: await rows<StoredJob>(
        `select id, kind, outcome as state, fence, payload ->> 'key' as key, result ->> 'fence' as "resultFence" from pawl.job_history`,
      ),
      live: await rows<StoredJob>(`select id, kind, state, fence, payload ->> 'key' as key, null as "resultFence" from pawl.job`),
      /** How attempts ended, by job and fence. */
      ended: groupBy(attempts, ({ attempt }) => attempt),
      excused: new Set(rewritten.map(({ old }) => `${old!.job_id} ${old!.fence}`)),
    }
  })
}

type Facts = Awaited<ReturnType<typeof readJobFacts>>

export async function judge(rig: Rig, end: RunEnd): Promise<Judged> {
  const facts = await readJobFacts(rig, end)
  const { finished, live, refusals: refused, transitions } = facts
  const done = count(finished, ({ state }) => state === 'done')
  const reclaims = count([...facts.ended.values()].flat(), ({ outcome }) => outcome === 'crashed')
  const ends = { done, cancelled: finished.length - done, dead: live.length, excused: facts.excused.size }
  const more = { jobs: finished.length + live.length, ...ends }
  return judged(checks, facts, { changes: transitions.length, shown: { reclaims, refused }, more })
}

// ---- checks

export const checks = {
  /** Every acknowledged job exists, once; a refused one does not; of an unknown enqueue all or nothing; no job came from nowhere. */
  'nothing lost'({ finished, live, entries, produced }, find) {
    const byKey = groupBy([...finished, ...live], ({ key }) => key ?? '')
    const ends = enqueueEnds(entries)
    const asked = new Set<string>()
    for (const { entry, ph } of ends) {
      const keys = entry.keys as readonly string[]
      const counts = keys.map((key) => byKey.get(key)?.length ?? 0)
      for (const key of keys) asked.add(key)
      const answer = entry.ph === 'invoke' ? 'died with its process' : `was answered ${entry.ph}`
      const text = `enqueue ${entry.batch} (${entry.kind}, ${entry.via}) ${answer}`
      const present = count(counts, (times) => times > 0)
      if (counts.some((times) => times > 1)) find(`${text}, and one of its jobs is there ${Math.max(...counts)} times`)
      if (ph === 'ok' && present < keys.length) find(`${text}, and ${keys.length - present} of its ${keys.length} jobs are lost`)
      if (ph === 'fail' && present > 0) find(`${text}, and ${present} of its jobs are there`)
      if (ph === 'info' && present > 0 && present < keys.length)
        find(`${text}, and half of it is there: ${present} of ${keys.length}`)
      if (entry.via === 'own' && produced.has(String(entry.batch)) !== present > 0)
        find(`${text}, and its own row and its jobs did not commit together`)
    }
    for (const [key, [job]] of byKey) if (!asked.has(key)) find(`job ${job!.id} was enqueued by no process (key ${key})`)
    return ends.length
  },

  'one end each'({ finished, live }, find) {
    const liveIds = new Set(live.map(({ id }) => id))
    for (const [id, rows] of groupBy(finished, (job) => job.id)) {
      const ends = rows.map(({ state, fence }) => `${state} by fence ${fence}`)
      if (rows.length > 1) find(`job ${id} has ${rows.length} history rows: ${ends.join(', ')}`)
      if (liveIds.has(id)) find(`job ${id} is in history and still live`)
    }
    return finished.length
  },

  'all at rest'({ live, finished, isDrained, notStopped }, find) {
    const stuck = live.filter(({ state }) => state !== 'dead')
    const some = stuck.slice(0, 5).map(({ id, kind, state }) => `${id} (${kind}) is ${state}`)
    if (!isDrained || stuck.length > 0) find(`${stuck.length} job(s) did not end after healing: ${some.join(', ')}`)
    for (const slot of notStopped) find(`worker ${slot} did not stop in order after healing`)
    return finished.length + live.length
  },

  /** Done: exactly one effect. Otherwise: none. */
  'applied once'({ finished, live, effects }, find) {
    const byJob = groupBy(effects, ({ job }) => job)
    const jobs = [...finished, ...live].filter(({ kind }) => exactKinds.includes(kind))
    for (const { id, kind, state } of jobs) {
      const found = (byJob.get(id) ?? []).map(({ fence, proc }) => `fence ${fence} in ${proc}`)
      if (found.length !== (state === 'done' ? 1 : 0))
        find(`job ${id} (${kind}) is ${state} and has ${found.length} effect(s): ${found.join(', ')}`)
    }
    const known = new Set(jobs.map(({ id }) => id))
    for (const id of byJob.keys()) if (!known.has(id)) find(`there is an effect of job ${id}, which is not there`)
    return jobs.length
  },

  'effect and completion in one transaction'(facts, find) {
    const done = new Map(facts.finished.filter(({ state }) => state === 'done').map((job) => [job.id, job]))
    for (const { job, kind, xid, fence } of facts.effects) {
      const held = done.get(job)?.fence
      if (held === undefined) continue
      const removal = removalOf(facts, job)?.xid
      if (removal !== xid) find(`job ${job} (${kind}): its effect is of transaction ${xid}, its completion of ${removal}`)
      if (held !== fence) find(`job ${job} (${kind}): its effect was made under fence ${fence}, and it was done under ${held}`)
    }
    return facts.effects.length
  },

  /** The stored result names the fence that its handler was given, and the process that stored it is the one that held the job. */
  'settled by its holder'(facts, find) {
    const done = facts.finished.filter(({ state }) => state === 'done')
    for (const { id, kind, fence, resultFence } of done) {
      if (resultFence !== fence)
        find(`job ${id} (${kind}) was held under fence ${fence}, and the result of fence ${resultFence} was stored`)
      const { old, proc } = removalOf(facts, id) ?? {}
      if (old === undefined || old === null) continue
      const holder = facts.workerNames.get(old.holder) ?? 'nobody'
      if (old.state !== 'running' || holder !== proc)
        find(`job ${id} (${kind}) was ${old.state}, held by ${holder}, and ${proc} settled it`)
    }
    return done.length
  },

  /** At least once when done, at most once per claim, always with the same key, never under a fence that was not claimed. */
  'delivered outside'({ entries, finished, byJob }, find) {
    const deliveries = told(entries, 'delivered')
    const delivered = groupBy(deliveries, ({ job }) => String(job))
    for (const { id, kind, fence } of finished.filter((job) => outsideKinds.includes(job.kind) && job.state === 'done'))
      if (!delivered.get(id)?.some((delivery) => delivery.fence === fence))
        find(`job ${id} (${kind}) is done and its effect outside was never made under fence ${fence}`)
    const owners = new Map<string, string>()
    for (const [id, list] of delivered) {
      const claims = (byJob.get(id) ?? []).filter((change) => change.new?.state === 'running')
      const claimed = new Set(claims.map((change) => change.new!.fence))
      for (const [fence, same] of groupBy(list, (delivery) => String(delivery.fence))) {
        if (!claimed.has(fence)) find(`job ${id} was delivered under fence ${fence}, which no claim gave out`)
        if (same.length > 1) find(`job ${id} was delivered ${same.length} times under the one fence ${fence}`)
      }
      const keys = new Set(list.map(({ idempotencyKey }) => String(idempotencyKey)))
      if (keys.size > 1) find(`job ${id} was delivered under different idempotency keys: ${[...keys].join(', ')}`)
      for (const key of keys) {
        if (owners.has(key)) find(`jobs ${owners.get(key)} and ${id} share the idempotency key ${key}`)
        owners.set(key, id)
      }
    }
    return deliveries.length
  },

  /** They need not grow: the clock that they carry may be set back. */
  'fences never repeat'({ byJob }, find) {
    let looked = 0
    for (const [id, changes] of byJob) {
      const seen = new Set<string>()
      let last = ''
      for (const { old, new: now, actor } of changes) {
        if (now === null) continue
        looked++
        const mustBeNew = now.state === 'running' || old?.state === 'running' || now.fence !== last
        if (mustBeNew && seen.has(now.fence))
          find(`job ${id}: the fence ${now.fence} came again (${old?.state} -> ${now.state} by ${actor})`)
        seen.add(now.fence)
        last = now.fence
      }
    }
    return looked
  },

  /** Replays every change: a claim counts one attempt; what was given back or snoozed returns it; a failure or a crash keeps it. */
  'attempts add up'({ entries, transitions, ended, excused }, find) {
    const started = new Set(told(entries, 'start').map(({ job, fence }) => `${job} ${fence}`))
    for (const [key, rows] of ended) {
      const [{ outcome, kind, error }] = rows as [(typeof rows)[0]]
      if (rows.length > 1)
        find(`attempt ${key} (job, fence) ended ${rows.length} times: ${rows.map((row) => row.outcome).join(', ')}`)
      if (outcome === 'failed' && !started.has(key))
        find(`attempt ${key} (job, fence) of ${kind} counts as failed, and its handler was never called: ${firstLine(error)}`)
    }
    for (const { old, new: now, actor } of transitions) {
      if (old === null || now === null) continue
      const change = `job ${now.id}: ${old.state} -> ${now.state} by ${actor} under fence ${old.fence}`
      const by = Number(now.attempt) - Number(old.attempt)
      const crashes = Number(now.crashes) - Number(old.crashes)
      if (!graph[old.state]?.includes(now.state)) find(`${change} is not a legal change`)
      else if (now.state === 'running') {
        if (by !== 1 || crashes !== 0) find(`${change} counted ${by} attempts`)
      } else if (old.state === 'running') {
        const row = ended.get(`${old.id} ${old.fence}`)?.[0]
        // Excused attempts change from crashed to interrupted; this change of the job is the rescue's, which counted a crash.
        const outcome = excused.has(`${old.id} ${old.fence}`) ? 'crashed' : (row?.outcome ?? 'given back')
        const isReturned = outcome === 'given back' || outcome === 'interrupted'
        if (by !== (isReturned ? -1 : 0)) find(`${change}: it was ${outcome}, and its attempts changed by ${by}`)
        if (crashes !== (outcome === 'crashed' ? 1 : 0))
          find(`${change}: it was ${outcome}, and its crashes changed by ${crashes}`)
      } else if (old.state === 'dead' ? now.attempt !== '0' || now.crashes !== '0' : by !== 0 || crashes !== 0)
        find(`${change} changed its attempts from ${old.attempt} to ${now.attempt}`)
    }
    return transitions.length
  },

  /** A job dies of its own failures or of its own crashes: nothing that happens around it may use it up. */
  'dead for a cause'({ transitions, byJob, ended }, find) {
    const deaths = transitions.filter((change) => change.new?.state === 'dead')
    const outcomeOf = (id: string, fence: string) => ended.get(`${id} ${fence}`)?.[0]
    for (const { old, new: now } of deaths) {
      const { id, kind, attempt, crashes } = now!
      const row = outcomeOf(id, old!.fence)
      const text = `job ${id} (${kind}) is dead after ${attempt} attempts and ${crashes} crashes, the last ${row?.outcome ?? 'not recorded'}`
      if (row === undefined) find(text)
      else if (row.outcome === 'failed' && kind !== 'doomed')
        find(`${text}: its handler never failed by itself so often (${firstLine(row.error)})`)
      else if (row.outcome === 'crashed') {
        // The first of the crashes that count may have been another job's; in each of the others it was a suspect, and alone in the last.
        const claims = byJob.get(id)!.flatMap((change) => (change.new?.state === 'running' ? [change.new] : []))
        const own = count(claims, ({ suspect, fence }) => suspect === 'true' && outcomeOf(id, fence)?.outcome === 'crashed')
        if (own < Number(crashes) - 1) find(`${text}: in only ${own} of them it was a suspect`)
        if (Number(crashes) < crashesMax(kind)) find(`${text}: its kind may crash ${crashesMax(kind)} times`)
      }
    }
    return deaths.length
  },

  /** The crash that reaches the limit of a kind is one of a process that held nothing else: only the job itself can be blamed for it. */
  'deciding runs alone'({ transitions, ended }, find) {
    const claims = transitions.flatMap(({ old, new: now }) =>
      now?.state === 'running' ? [{ ...now, before: old?.crashes }] : [],
    )
    const outcomeOf = ({ id, fence }: { id: string; fence: string }) => ended.get(`${id} ${fence}`)?.[0]?.outcome
    const crashed = groupBy(claims, (claim) => (outcomeOf(claim) === 'crashed' ? claim.holder : undefined))
    for (const [id, ofJob] of groupBy(claims, (claim) => claim.id)) {
      let strikes = 0
      for (const claim of ofJob) {
        if (claim.before === '0') strikes = 0
        const outcome = outcomeOf(claim)
        if (outcome === 'crashed') strikes++
        else if (outcome !== undefined && outcome !== 'interrupted' && outcome !== 'snoozed') strikes = 0
        const [other, ...others] = (crashed.get(claim.holder) ?? []).filter((each) => each.id !== id)
        const limit = crashesMax(claim.kind)
        if (outcome !== 'crashed' || strikes < limit || other === undefined) continue
        const beside = `${others.length + 1} other job(s), among them ${other.id} (${other.kind})`
        find(`job ${id} (${claim.kind}): its crash ${strikes} of ${limit} was counted although its process held ${beside}`)
      }
    }
    return count(claims, ({ suspect }) => suspect === 'true')
  },

  /** After an accepted cancel the job is cancelled and has no effect in the database. */
  'cancel respected'({ entries, finished, effects }, find) {
    const accepted = told(entries, 'cancel', 'ok')
    const states = new Map(finished.map(({ id, state }) => [id, state]))
    const applied = new Set(effects.map(({ job }) => job))
    for (const { job, was } of accepted) {
      const id = String(job)
      const state = states.get(id) ?? 'not finished'
      if (state !== 'cancelled') find(`job ${id}: its cancel was answered ok (it was ${was}), and it is ${state}`)
      if (applied.has(id)) find(`job ${id} was cancelled and has an effect all the same`)
    }
    return accepted.length
  },

  'leases in database time'({ leases, steps, leaseMs, workerNames }, find) {
    const open = leases.filter(({ new: now }) => now !== null && now.closed_at === null)
    for (const { at, new: now, seen } of open) {
      const atMs = Date.parse(seen.now)
      const offMs = Date.parse(now!.seen_at) - atMs
      const lengthMs = Date.parse(now!.lease_until) - atMs
      // A statement that read the clock just before a step was recorded just after: it is off by that step.
      const near = steps.filter((step) => Math.abs(step.at.getTime() - at) < 3000)
      const isRight = (ms: number) =>
        [0, ...near.map((step) => -Number(step.ms))].some((step) => Math.abs(ms - step) <= clockToleranceMs)
      const text = `worker ${now!.id} (${workerNames.get(now!.id)})`
      if (!isRight(offMs)) find(`${text} was seen ${Math.round(offMs / 1000)} s away from the clock of the database`)
      if (!isRight(lengthMs - leaseMs))
        find(`${text} has a lease of ${leaseMs} ms, and its end was set ${lengthMs} ms ahead of the clock of the database`)
    }
    return open.length
  },

  'closed incarnations stay closed'({ leases, workerNames }, find) {
    for (const { old, new: now } of leases) {
      if (now === null || old === null || old.closed_at === null) continue
      const text = `worker ${now.id} (${workerNames.get(now.id)})`
      if (now.closed_at === null) find(`${text} was closed and opened again`)
      else if (Date.parse(now.lease_until) > Date.parse(old.lease_until)) find(`${text} renewed its lease after it was closed`)
    }
    return leases.length
  },

  'claims wait for no lock'({ entries, transitions }, find) {
    const waits = told(entries, 'claim waits')
    for (const [application, list] of groupBy(waits, (entry) => String(entry.application)))
      find(`the ${application} waited for a row that a stranger had locked (job ${list[0]!.behind}), seen ${list.length} time(s)`)
    return count(transitions, (change) => change.new?.state === 'running')
  },
} satisfies Record<string, Check<Facts>>

export type CheckName = keyof typeof checks

/**
 * How each enqueue ended. One without an answer died with its process, and the place of the death tells: killed between insert and commit
 * of its own transaction it cannot have committed; killed after the answer to an enqueue without one it is there.
 */
function enqueueEnds(entries: readonly Entry[]): { entry: Entry; ph: 'ok' | 'fail' | 'info' }[] {
  const enqueues = told(entries, 'enqueue')
  const answered = new Set(enqueues.filter(({ ph }) => ph !== 'invoke').map(({ batch }) => batch))
  const kills = entries.filter(({ op, probe, kind }) => op === 'fault' && probe === 'jobs.enqueue.sent' && kind === 'kill')
  const killed = new Set(kills.map(({ proc }) => proc))
  return enqueues.flatMap((entry): { entry: Entry; ph: 'ok' | 'fail' | 'info' }[] => {
    if (entry.ph !== undefined && entry.ph !== 'invoke') return [{ entry, ph: entry.ph }]
    if (answered.has(entry.batch)) return []
    return [{ entry, ph: killed.has(entry.proc) ? (entry.via === 'own' ? 'fail' : 'ok') : 'info' }]
  })
}

/** The change that removed a job. */
const removalOf = ({ byJob }: Facts, id: string): Transition | undefined => byJob.get(id)?.find((change) => change.new === null)

const graph: Readonly<Record<string, readonly string[]>> = {
  scheduled: ['ready'],
  ready: ['running'],
  running: ['scheduled', 'ready', 'dead'],
  dead: ['ready'],
}

function firstLine(text: string | null): string {
  return (text ?? 'no error').split('\n')[0]!
}

/** Clocks are read at slightly different moments within a statement; a process may be off the processor between them. */
const clockToleranceMs = 10_000
