-- Tells which of the jobs that an incarnation works on are no longer its own: cancelled, timed out or taken over.
-- Locks: none.
-- Plan: job_pkey for each; job_history_id for the lost ones only.
-- Rows: the lost ones, with what became of them if they finished under this very fence. Done by another holder is lost.
with lost as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  where (
    select true
    from pawl.job j
    where j.tenant = g.tenant
      and j.id = g.id
      and j.fence = g.fence
  ) is null
)
select l.tenant, l.id, l.fence, h.outcome, h.reason
from lost l
left join lateral (
  select x.outcome, x.reason
  from pawl.job_history x
  where x.tenant = l.tenant
    and x.id = l.id
    and x.fence = l.fence
    and x.finished_at >= least(to_timestamp((l.id >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
  limit 1
) h on true
