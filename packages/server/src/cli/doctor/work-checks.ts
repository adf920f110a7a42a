// The work itself: dead workers, open alerts, kinds that no worker runs.

import { counted, oneLine, shortDuration } from '../terminal.ts'
import { type Check, fault, ok, rowsOf } from './check.ts'

const listMax = 20
/** A worker may not have seen a job that was just added. */
const patienceMs = 10_000

export const checkWorkers: Check = async (patient) => {
  const rows = await rowsOf<{
    id: number
    name: string
    pid: number
    host: string
    is_dead: boolean
    silent_ms: number
    held: number
    runs_jobs: boolean
  }>(
    patient,
    `select w.id, p.name, p.pid, p.host, cardinality(p.queues) > 0 as runs_jobs, w.lease_until < pawl.now() as is_dead, (extract(epoch from pawl.now() - w.seen_at) * 1000)::float8 as silent_ms,
       (select count(*)::integer from (select from pawl.job j where j.state = 'running' and j.holder = w.id limit 10000) held) as held
     from pawl.worker w
     join pawl.worker_process p on p.tenant = w.tenant and p.id = w.id
     where w.closed_at is null
     order by w.id
     limit 1000`,
  )
  const dead = rows.filter(({ is_dead }) => is_dead)
  const faults = dead
    .slice(0, listMax)
    .map(({ id, name, pid, host, silent_ms, held }) =>
      fault(
        'workers',
        `Worker ${id} (${oneLine(name)}, pid ${pid} on ${oneLine(host)}) has been silent for ${shortDuration(silent_ms)}: its lease has ended, and no worker has taken over its ${counted(held, 'job')}.`,
        'start a worker: pawl worker <module>; it takes them over within seconds',
      ),
    )
  const alive = rows.filter(({ is_dead }) => !is_dead)
  const [ready] = await rowsOf<{ count: number }>(
    patient,
    `select count(*)::integer as count
     from (select from pawl.job j where j.state = 'ready' and j.run_at < pawl.now() - $1::float8 * interval '1 millisecond' limit 10000) waiting`,
    [patienceMs],
  )
  if (!alive.some(({ runs_jobs }) => runs_jobs) && ready!.count > 0)
    faults.push(
      fault(
        'workers',
        `No worker that runs jobs is alive. Jobs that are waiting: ${ready!.count >= 10_000 ? 'at least ' : ''}${ready!.count}.`,
        'start one: pawl worker <module>',
      ),
    )
  if (faults.length > 0) return faults
  if (alive.length === 0) return [ok('workers', 'none running, no job waiting')]
  const processes = new Set(alive.map(({ host, pid }) => `${host} ${pid}`)).size
  return [ok('workers', `${counted(alive.length, 'worker')} alive, in ${processes} process${processes === 1 ? '' : 'es'}`)]
}

/** By the code of the alert. */
export const alertFixes: Readonly<Record<string, (subject: string) => string>> = {
  'batch.blocked': (subject) =>
    `let the transactions that the message names end, or end their sessions; then: pawl batches why ${subject}`,
  'cursor.latched': () => 'compare its tables with the log, then pawl.projections.resume(name, {reason}), or rebuild it',
  'cursor.stale': () =>
    "start a worker that defines it and call pawl.projections.resume(name, {reason}); if its events are gone, add from: 'oldest'",
  'engine.failing': () =>
    "fix what the message says: often a missing privilege of the worker's role, or a schema of another release (pawl migrate)",
  'event.retention': () => 'pawl.events.whoHoldsBack() lists what holds them back, with the statement that ends it',
  'job.dead': (kind) => `pawl jobs list --state dead --kind ${kind}; then pawl jobs retry <id>, or cancel`,
  'job.postponed': (kind) => `start pawl worker, which runs jobs of '${kind}' in a process of their own, or cancel the job`,
  'job.timed-out': (kind) => `give '${kind}' a longer timeout, or make its handler react to its signal`,
  'kind.unknown': (kind) => `start a worker that defines '${kind}' and works its queue`,
  'partition.last': () => 'start a worker; if it stays, end the oldest open transaction',
  'projection.breaker': (name) =>
    `pawl.projections.parked('${name}') lists the reasons; fix the cause, pawl.projections.resume('${name}', {reason}), then unpark`,
  'projection.parked': (name) => `pawl.projections.parked('${name}') lists the reason; fix it, then unpark or skip`,
  'submission.failed': () => 'pawl.records.why(id) has the reason; fix it, then pawl.records.resume(id)',
}

export const checkAlerts: Check = async (patient) => {
  // Kinds that no worker runs have a check of their own, which reads the jobs as they are now.
  const rows = await rowsOf<{
    tenant: string
    code: string
    subject: string
    message: string
    count: string
    last_ms: number
    open: string
  }>(
    patient,
    `select a.tenant, a.code, a.subject, a.message, a.count, (extract(epoch from pawl.now() - a.last_at) * 1000)::float8 as last_ms,
       count(*) over () as open
     from pawl.open_alerts($1::text) a
     where a.code <> 'kind.unknown'
     order by a.last_at desc
     limit ${listMax}`,
    [patient.tenant ?? null],
  )
  if (rows.length === 0) return [ok('alerts', 'none open')]
  const shown = rows.map(({ tenant, code, subject, message, count, last_ms }) =>
    fault(
      'alerts',
      `${code} ${oneLine(subject)}${ofTenant(tenant)}, ${counted(Number(count), 'time')}, last ${shortDuration(last_ms)} ago: ${oneLine(message.split('\n')[0]!)}`,
      alertFixes[code]?.(oneLine(subject)) ?? 'fix what the message says',
    ),
  )
  const more = Number(rows[0]!.open) - rows.length
  if (more > 0)
    shown.push(fault('alerts', `${more} more open; these are the ${listMax} newest.`, "pawl.alerts({ tenant: '*' }) lists 500"))
  return shown
}

function ofTenant(tenant: string): string {
  return tenant === '' ? '' : ` of tenant ${oneLine(tenant)}`
}

export const checkKinds: Check = async (patient) => {
  const rows = await rowsOf<{ tenant: string; kind: string; queue: string; count: number; oldest: string }>(
    patient,
    `with waiting as (
       select j.tenant, j.kind, j.queue, j.id
       from pawl.job j
       where j.state = 'ready'
         and j.run_at < pawl.now() - $1::float8 * interval '1 millisecond'
         and ($2::text is null or j.tenant = $2::text)
       limit 100000
     )
     select w.tenant, w.kind, w.queue, count(*)::integer as count, min(w.id)::text as oldest
     from waiting w
     where not exists (
       select
       from pawl.worker o
       join pawl.worker_process p on p.tenant = o.tenant and p.id = o.id
       where o.closed_at is null
         and w.kind = any (p.kinds)
         and w.queue = any (p.queues)
     )
     group by w.tenant, w.kind, w.queue
     order by count(*) desc
     limit ${listMax}`,
    [patienceMs, patient.tenant ?? null],
  )
  if (rows.length === 0)
    return [ok('kinds', `every job that has waited ${shortDuration(patienceMs)} has a worker that runs its kind`)]
  return rows.map(({ tenant, kind, queue, count, oldest }) =>
    fault(
      'kinds',
      `No worker runs kind ${oneLine(kind)}${ofTenant(tenant)} in queue ${oneLine(queue)}, where it has ${counted(count, 'job')} (the oldest is ${oldest}).`,
      fixFor(kind, tenant),
    ),
  )
}

/** A job of Pawl's own kinds cannot be cancelled by itself. */
function fixFor(kind: string, tenant: string): string {
  const [, batch] = /^pawl\.batch\.(.+)\.(?:prepare|step|item|end)$/.exec(kind) ?? []
  if (batch !== undefined) return `deploy a worker that defines the batch '${oneLine(batch)}' for that queue`
  if (kind.startsWith('pawl.')) return 'deploy a worker that defines it for that queue'
  const cancel = `pawl jobs cancel <id>${tenant === '' ? '' : ` --tenant ${oneLine(tenant)}`}`
  return `deploy a worker that defines the kind for that queue, or cancel them: ${cancel}`
}

/** A cursor without a holder may be about to be taken; one that no living process defines stays where it is. */
export const checkProjections: Check = async (patient) => {
  const rows = await rowsOf<{ tenant: string; name: string; is_sink: boolean }>(
    patient,
    `select p.tenant, p.name, bool_or(c.kind = 'sink') as is_sink
     from pawl.projection p
     join pawl.cursor c on c.tenant = p.tenant and c.name = p.name
     where c.state = 'running'
       and ($1::text is null or p.tenant = $1::text)
       and not exists (
         select
         from pawl.worker w
         join pawl.worker_process o on o.tenant = w.tenant and o.id = w.id
         cross join unnest(o.kinds) k(kind)
         where w.closed_at is null
           and w.lease_until > pawl.now()
           and starts_with(k.kind, format('projection:%s/%s/', p.tenant, p.name))
       )
     group by p.tenant, p.name
     order by p.tenant, p.name
     limit ${listMax}`,
    [patient.tenant ?? null],
  )
  if (rows.length === 0) return [ok('projections', 'each has a process that runs it')]
  return rows.map(({ tenant, name, is_sink }) =>
    fault(
      'projections',
      `No running process runs the ${is_sink ? 'sink' : 'projection'} ${oneLine(name)}${ofTenant(tenant)}: it gets no events.`,
      fixForCursor(oneLine(name)),
    ),
  )
}

/** Pawl's own cannot be forgotten. */
function fixForCursor(name: string): string {
  const own = /^pawl\.(.+)$/.exec(name)?.[1]
  if (own !== undefined) return `start a worker of a process that defines ${own}: pawl worker <module>; it cannot be forgotten`
  return `start one that defines it: pawl worker <module>; if it is gone for good: pawl.projections.forget('${name}', { reason })`
}
