-- Removes the stored row errors of a submission; they are bounded.
-- Locks: those rows.
-- Plan: submission_error_pkey.
-- No row is returned.
delete from pawl.submission_error e
where e.tenant = :tenant::text
  and e.submission = :id::bigint
