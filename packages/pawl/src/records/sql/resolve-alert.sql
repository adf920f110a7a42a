-- Resolves the alert about failed submissions of a set when none is left.
-- Locks: the alert row.
-- Plan: alert_open, submission_failed.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.tenant = :tenant::text
  and a.code = 'submission.failed'
  and a.subject = :record_set::text
  and a.resolved_at is null
  and not exists (
    select
    from pawl.submission u
    where u.tenant = :tenant::text
      and u.record_set = :record_set::text
      and u.state = 'failed'
  )
