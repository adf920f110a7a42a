-- Every recorded attempt of one job, oldest first.
-- Locks: none.
-- Plan: job_attempt_job and job_history_id, in every partition: a clock that was set back lets attempts end before the day that the id carries.
-- No row: no attempt of it has ended yet.
select a.attempt, a.outcome, a.error, a.holder, a.fence, a.ended_at, a.ran_ms
from pawl.job_attempt a
where a.tenant = :tenant::text
  and a.job_id = :id::bigint
union all
select h.attempt, h.outcome, h.reason, h.holder, h.fence, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
order by ended_at, attempt
