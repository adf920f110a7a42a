-- Tells which of the jobs that an incarnation works on are no longer its own: cancelled, timed out or taken over.
-- Locks: none.
-- Plan: job_pkey for each.
-- Rows: the lost ones.
select g.tenant, g.id, g.fence, h.outcome, h.reason
from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
left join lateral (
  select x.outcome, x.reason
  from pawl.job_history x
  where x.tenant = g.tenant
    and x.id = g.id
    and x.finished_at >= to_timestamp((g.id >> 21) / 1000.0) - interval '2 days'
  limit 1
) h on true
where not exists (
  select
  from pawl.job j
  where j.tenant = g.tenant
    and j.id = g.id
    and j.fence = g.fence
)
