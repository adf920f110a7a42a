-- Settles a batch of jobs as done: deletes each by (id, fence) and writes its history row.
-- Locks: the job rows, by id: a caller's transaction that cancels several jobs in that order cannot wait with us in a circle.
-- Plan: job_pkey for each. The predicate names id and fence and nothing else: a test of the state would walk job_held instead. An
-- array beside the tenant has no order to merge by, so the planner cannot walk job_pkey from end to end where it takes the table for empty.
-- One row: how many. If that is fewer than were given, unsettled.sql tells which were refused; fewer than :at_least raises PW001.
with given as materialized (
  select coalesce(g.tenant, '') as tenant, g.id, g.fence, g.result, g.progress, g.ran_ms
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[], :results::jsonb[], :progress::jsonb[], :ran_ms::integer[])
    as g(tenant, id, fence, result, progress, ran_ms)
  order by g.tenant, g.id
),
gone as (
  delete from pawl.job j
  using given g
  where j.tenant = any (array[g.tenant])
    and j.id = g.id
    and j.fence = g.fence
  returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
    j.payload, j.headers, coalesce(g.progress, j.progress) as progress, g.result, g.ran_ms
),
kept as (
  insert into pawl.job_history (id, fence, created_at, finished_at, ran_ms, holder, attempt, crashes, priority, payload_version, tenant,
    queue, kind, outcome, payload, headers, progress, result)
  select o.id, o.fence, o.created_at, (select pawl.now()), o.ran_ms, o.holder, o.attempt, o.crashes, o.priority, o.payload_version,
    o.tenant, o.queue, o.kind, 'done', o.payload, o.headers, o.progress, o.result
  from gone o
)
select count(*)::integer as settled,
  case when count(*) < :at_least::integer then pawl.raise_lease_lost('job', min(o.id), min(o.fence))::text end as refused
from gone o
