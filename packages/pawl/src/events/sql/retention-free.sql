-- Nothing keeps events from being removed any more.
-- Locks: the alert's row.
-- Plan: alert_open.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.tenant = ''
  and a.code = 'event.retention'
  and a.subject = 'event'
  and a.resolved_at is null
