-- Holds a submission while its next state is decided.
-- Locks: the submission row, FOR NO KEY UPDATE; take the scope's lock first.
-- Plan: submission_pkey.
-- No row: there is none for this tenant, or it expired and was removed.
select u.state, u.revision, u.baseline::text as baseline, u.baseline_number::text as baseline_number, u.number::text as number, u.job_id::text as job_id,
  coalesce(u.expires_at <= pawl.now(), false) as is_expired, u.applied_line::text as applied_line
from pawl.submission u
where u.tenant = :tenant::text
  and u.id = :id::bigint
for no key update
