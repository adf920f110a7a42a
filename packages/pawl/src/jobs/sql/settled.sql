-- Whether this very fence settled the job: asked when the answer to a commit was lost.
-- Locks: none.
-- Plan: job_history_id in the partitions from the day that the id carries.
-- No row: it did not.
select h.outcome
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
  and h.fence = :fence::bigint
  and h.outcome = 'done'
  and h.finished_at >= to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days'
