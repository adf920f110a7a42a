-- Holds the job of a submission while it is decided that nobody works on it: a job that is dead cannot be retried meanwhile.
-- Locks: the job row.
-- Plan: job_pkey.
-- No row: the job is gone (it was cancelled).
select j.state, j.last_error
from pawl.job j
where j.tenant = :tenant::text
  and j.id = :job_id::bigint
for update
