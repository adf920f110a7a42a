-- The queues in which something is ready, whether anybody works them or not.
-- Locks: none.
-- Plan: job_ready, one entry for each queue.
-- Rows: their names.
with recursive ready as (
  (
    select j.queue
    from pawl.job j
    where j.state = 'ready'
      and not j.suspect
    order by j.queue
    limit 1
  )
  union all
  select (
      select j.queue
      from pawl.job j
      where j.state = 'ready'
        and not j.suspect
        and j.queue > r.queue
      order by j.queue
      limit 1
    )
  from ready r
  where r.queue is not null
)
select r.queue
from ready r
where r.queue is not null
limit :limit::integer
