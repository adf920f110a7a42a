-- Takes the jobs of these closed incarnations away from them, at most :limit: each is a suspect now, or dead at its limit of crashes. What
-- an orderly stopped worker left running, or a process only held and had not started, is ready again, and as suspect as before.
-- Locks: those job rows, SKIP LOCKED: one that a transaction guards is left for the next round.
-- Plan: pawl.worker by primary key, job_held, then a TID scan. A test of the state beside the ctid would let the planner walk job_held from end
-- to end.
-- Rows: the jobs, with their new state.
with lost as materialized (
  select j.ctid, j.holder, j.fence, w.close_reason, j.claimed_at is not null as has_started,
    w.close_reason <> 'stopped' and j.claimed_at is not null as is_crash
  from unnest(:workers::integer[]) g(id)
  join pawl.worker w on w.tenant = '' and w.id = g.id and w.closed_at is not null
  cross join lateral (
    select k.ctid, k.holder, k.fence, k.claimed_at
    from pawl.job k
    where k.state = 'running'
      and k.holder = w.id
    order by k.id
    limit :limit::integer
    for update skip locked
  ) j
  limit :limit::integer
),
changed as (
  update pawl.job j
  set state = case when l.is_crash and j.crashes + 1 - j.excused >= coalesce(j.max_crashes, :max_crashes::integer) then 'dead' else 'ready' end,
    attempt = j.attempt - case when l.is_crash then 0 else 1 end,
    crashes = j.crashes + case when l.is_crash then 1 else 0 end,
    suspect = case when l.is_crash then j.crashes + 1 - j.excused < coalesce(j.max_crashes, :max_crashes::integer) else j.suspect end,
    last_error = case when l.is_crash then 'Worker ' || l.holder || ' ended while the job may have been running (' || l.close_reason || ')' else j.last_error end,
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  from lost l
  where j.ctid = l.ctid
    and j.fence = l.fence
  returning j.tenant, j.id, j.queue, j.kind, j.state, j.attempt, j.crashes, j.last_error, l.holder, l.fence, l.has_started, l.is_crash
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, pawl.now(), o.holder, o.attempt, o.tenant, o.kind,
    case when o.is_crash then 'crashed' else 'interrupted' end, o.last_error
  from changed o
  where o.has_started
),
alerted as (
  insert into pawl.alert as a (tenant, code, subject, message, count)
  select o.tenant, 'job.dead', o.kind, format('%s job(s) of kind %s are dead; the last is %s: %s', count(*), o.kind, max(o.id),
    (array_agg(o.last_error order by o.id desc))[1]), count(*)
  from changed o
  where o.state = 'dead'
  group by o.tenant, o.kind
  order by o.tenant, o.kind
  on conflict (tenant, code, subject) where resolved_at is null
  do update set count = a.count + excluded.count, last_at = pawl.now(), message = excluded.message
)
select o.tenant, o.id, o.kind, o.state, o.holder, o.crashes, pawl.wake(o.queue) is null as woke
from changed o
