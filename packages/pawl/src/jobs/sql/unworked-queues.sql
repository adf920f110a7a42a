-- The queues in which something is ready and that no open worker works.
-- Locks: none.
-- Plan: pawl.live_workers(), worker_process_pkey, job_ready. One entry for each queue between two that are worked: those themselves may begin with dead entries.
-- Rows: their names.
with recursive worked as materialized (
  select distinct q as queue
  from pawl.worker_process p, unnest(p.queues) q
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
),
gap as materialized (
  select g.queue as above, coalesce(lead(g.queue) over (order by g.queue), chr(1114111)) as below
  from (select '' collate "C" as queue union select k.queue collate "C" from worked k) g
),
ready as (
  select g.below, f.queue
  from gap g
  cross join lateral (
    select j.queue
    from pawl.job j
    where j.state = 'ready'
      and not j.suspect
      and j.queue > g.above
      and j.queue < g.below
    order by j.queue
    limit 1
  ) f
  union all
  select r.below, f.queue
  from ready r
  cross join lateral (
    select j.queue
    from pawl.job j
    where j.state = 'ready'
      and not j.suspect
      and j.queue > r.queue
      and j.queue < r.below
    order by j.queue
    limit 1
  ) f
)
select r.queue
from ready r
limit :limit::integer
