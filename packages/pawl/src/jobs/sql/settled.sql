-- What became of a job under this very fence: asked when the answer to a commit was lost, or a fence was refused.
-- Locks: none.
-- Plan: job_history_id in the partitions from the day that the id carries, and job_pkey.
-- No row: another holder has it, or had it.
select h.outcome as fate
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
  and h.fence = :fence::bigint
  and h.outcome = 'done'
  and h.finished_at >= least(to_timestamp((:id::bigint >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
union all
select 'held'
from pawl.job j
where j.tenant = :tenant::text
  and j.id = :id::bigint
  and j.fence = :fence::bigint
