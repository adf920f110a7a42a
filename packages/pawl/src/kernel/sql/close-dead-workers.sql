-- Closes incarnations whose process is gone: the lease ended, or the liveness lock is free and the last beat is older than a second. After
-- a restart or failover of the server everyone's lock is free and everyone's beat is old; so the lock is believed only by a session
-- that has itself been there for three seconds, in which the living have come back.
-- Locks: their worker rows, SKIP LOCKED. The advisory lock is tried, never waited for: a waiter would hold back vacuum.
-- Plan: the few rows of open workers.
-- Rows: the closed incarnations and why.
with clock as materialized (
  select pawl.now() as now
),
silent as materialized (
  select w.tenant, w.id, w.lease_until < c.now as is_ended, w.locks
  from pawl.worker w, clock c
  where w.tenant = ''
    and w.closed_at is null
    and w.seen_at < c.now - interval '1 second'
),
gone as materialized (
  select s.tenant, s.id, case when s.is_ended then 'lease ended' else 'process died' end as reason
  from silent s
  where s.is_ended
    or (
      s.locks
      and (select a.backend_start < clock_timestamp() - interval '3 seconds' from pg_stat_activity a where a.pid = pg_backend_pid())
      and case when not s.is_ended then pg_try_advisory_xact_lock(:lock_class::integer, s.id) end
    )
),
closed as (
  update pawl.worker w
  set closed_at = c.now,
    close_reason = g.reason
  from gone g, clock c
  where w.tenant = g.tenant
    and w.id = g.id
    and w.closed_at is null
    and w.seen_at < c.now - interval '1 second'
  returning w.id, g.reason
),
awake as (
  delete from pawl.sleeper s
  using closed x
  where s.tenant = ''
    and s.worker = x.id
)
select x.id, x.reason
from closed x
