-- Resolves the alert about failed submissions of a set when none is left. It is locked already: lock-alert.sql.
-- Locks: none but that.
-- Plan: alert_pkey, submission_failed.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.tenant = :tenant::text
  and a.id = :id::bigint
  and not exists (
    select
    from pawl.submission u
    where u.tenant = :tenant::text
      and u.record_set = :record_set::text
      and u.state = 'failed'
  )
