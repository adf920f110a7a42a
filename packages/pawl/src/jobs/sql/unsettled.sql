-- Which of these fences have not settled their jobs. Asked after a settle that took fewer than it was given; what this very fence had
-- settled before (the answer to that commit was lost) is not among them.
-- Locks: none.
-- Plan: job_history_id for each, in the partitions from the day that the oldest id carries.
-- Rows: the refused ones.
select g.tenant, g.id, g.fence
from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
where not exists (
  select
  from pawl.job_history h
  where h.tenant = g.tenant
    and h.id = g.id
    and h.fence = g.fence
    and h.outcome = 'done'
    and h.finished_at >= least(to_timestamp((g.id >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
)
