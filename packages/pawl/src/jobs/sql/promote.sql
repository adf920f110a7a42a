-- Makes scheduled jobs ready whose time has come, at most :limit of them.
-- Locks: those job rows, SKIP LOCKED.
-- Plan: job_scheduled in order, then a TID scan. A second test of the state there would let the planner walk job_scheduled instead.
-- One row: how many, and in how many milliseconds the next one is due, at most an hour (null: none is scheduled).
with clock as materialized (
  select pawl.now() as now
),
moved as (
  update pawl.job j
  set state = 'ready',
    revision = j.revision + 1
  where j.ctid = any (array(
      select k.ctid
      from pawl.job k
      where k.state = 'scheduled'
        and k.run_at <= (select c.now from clock c)
      order by k.run_at, k.id
      limit :limit::integer
      for update skip locked
    ))
  returning j.queue
)
select (select count(*)::integer from moved) as promoted,
  (select count(*)::integer from (select pawl.wake(q.queue) from (select distinct m.queue from moved m) q) w) as queues,
  (
    select greatest(0, ceil(extract(epoch from least(k.run_at, c.now + interval '1 hour') - c.now) * 1000))::bigint
    from pawl.job k, clock c
    where k.state = 'scheduled'
      and k.run_at > c.now
    order by k.run_at
    limit 1
  ) as next_ms
