-- Every recorded attempt of one job, oldest first.
-- Locks: none.
-- Plan: job_attempt_job and job_history_id, in the partitions from the day that the id carries.
-- No row: no attempt of it has ended yet.
select a.attempt, a.outcome, a.error, a.holder, a.fence, a.ended_at, a.ran_ms
from pawl.job_attempt a
where a.tenant = :tenant::text
  and a.job_id = :id::bigint
  and a.ended_at >= to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days'
union all
select h.attempt, h.outcome, h.reason, h.holder, h.fence, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
  and h.finished_at >= to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days'
order by ended_at, attempt
