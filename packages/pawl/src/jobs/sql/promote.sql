-- Makes scheduled jobs ready whose time has come, at most :limit of them, by one worker at a time.
-- Locks: an advisory one, (pawl, -1), tried; those job rows, SKIP LOCKED.
-- Plan: job_scheduled in order, then a TID scan. :after_run_at and :after_id start it behind entries that vacuum cannot remove yet.
-- One row: how many, the last of them, and in how many milliseconds the next one is due (null: none is scheduled).
with clock as materialized (
  select pawl.now() as now, pg_try_advisory_xact_lock(:lock_class::integer, -1) as is_mine
),
due as materialized (
  select k.ctid, k.run_at, k.id
  from pawl.job k
  where k.state = 'scheduled'
    and (k.run_at, k.id) > (:after_run_at::timestamptz, :after_id::bigint)
    and k.run_at <= (select c.now from clock c)
    and (select c.is_mine from clock c)
  order by k.run_at, k.id
  limit :limit::integer
  for update skip locked
),
moved as (
  -- A second test of the state would let the planner walk job_scheduled instead.
  update pawl.job j
  set state = 'ready',
    revision = j.revision + 1
  where j.ctid = any (array(select d.ctid from due d))
  returning j.queue
),
last as (
  select d.run_at, d.id
  from due d
  order by d.run_at desc, d.id desc
  limit 1
)
select (select count(*)::integer from moved) as promoted,
  (select count(*)::integer from (select pawl.wake(q.queue) from (select distinct m.queue from moved m) q) w) as queues,
  (select l.run_at::text from last l) as last_run_at,
  (select l.id from last l) as last_id,
  (
    select ceil(extract(epoch from least(k.run_at, c.now + interval '1 hour') - c.now) * 1000)::integer
    from pawl.job k, clock c
    where k.state = 'scheduled'
      and k.run_at > (select n.now from clock n)
    order by k.run_at
    limit 1
  ) as next_ms
