-- Takes jobs away that ran past their time limit: those of the given worker whose run_until was before :before, without those that it says it
-- runs, and the given ones, which its keeper saw to be overdue while its own main thread was blocked. Counted as an attempt; dead, or retried with
-- the default backoff: the kind's own is not known here.
-- Locks: those job rows, SKIP LOCKED.
-- Plan: job_held, then a TID scan. :after starts it behind entries that vacuum cannot remove yet. A test of the state beside a ctid would let the
-- planner walk job_held from end to end.
-- Rows: the jobs, with their new state.
with clock as materialized (
  select pawl.now() as now
),
blocking as materialized (
  select k.ctid, k.id, k.fence
  from pawl.job k
  -- Only where jobs were given: beside an old snapshot this scan meets every dead entry of the worker.
  where cardinality(:ids::bigint[]) > 0
    and k.state = 'running'
    and k.holder = :worker::integer
    -- Mostly there are none, and all that this worker has held would be read in vain.
    and cardinality(:ids::bigint[]) > 0
),
overdue as materialized (
  select j.ctid, j.fence, j.holder, least(3600, power(2, least(j.attempt - j.crashes - 1, 16))) * random() * interval '1 second' as delay
  from pawl.job j
  where j.ctid = any (array(
      (
        select k.ctid
        from pawl.job k
        where k.state = 'running'
          and k.holder = :worker::integer
          and k.run_until < :before::timestamptz
          and k.run_until >= :after::timestamptz
          and (k.id, k.fence) not in (select r.id, r.fence from unnest(:running_ids::bigint[], :running_fences::bigint[]) as r(id, fence))
        limit :limit::integer
      )
      union all
      select b.ctid
      from unnest(:ids::bigint[], :fences::bigint[]) as u(id, fence)
      join blocking b on b.id = u.id and b.fence = u.fence
    ))
    -- Tested again in the row as it is once it is locked.
    and (
      j.run_until < (select c.now from clock c)
      or (j.id, j.fence) in (select u.id, u.fence from unnest(:ids::bigint[], :fences::bigint[]) as u(id, fence))
    )
  order by j.id
  for update skip locked
),
changed as (
  update pawl.job j
  set state = case when j.attempt - j.crashes >= coalesce(j.max_attempts, :max_attempts::integer) then 'dead' else 'scheduled' end,
    run_at = c.now + o.delay,
    due = c.now + o.delay - j.priority * interval '1 minute',
    suspect = false,
    excused = j.crashes,
    last_error = 'The attempt ran longer than its timeout',
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  from overdue o, clock c
  where j.ctid = o.ctid
    and j.fence = o.fence
  returning j.tenant, j.id, j.queue, j.kind, j.state, j.attempt, j.last_error, o.holder, o.fence
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, (select c.now from clock c), o.holder, o.attempt, o.tenant, o.kind, 'timed out', o.last_error
  from changed o
),
alerted as (
  insert into pawl.alert as a (tenant, code, subject, message, count)
  select o.tenant, case when o.state = 'dead' then 'job.dead' else 'job.timed-out' end, o.kind,
    format('%s job(s) of kind %s ran longer than their timeout; the last is %s', count(*), o.kind, max(o.id)), count(*)
  from changed o
  group by o.tenant, 2, o.kind
  order by o.tenant, 2, o.kind
  on conflict (tenant, code, subject) where resolved_at is null
  do update set count = a.count + excluded.count, last_at = pawl.now(), message = excluded.message
)
select o.tenant, o.id, o.kind, o.state, o.holder, pg_notify('pawl_lost', o.holder::text) is null as told
from changed o
