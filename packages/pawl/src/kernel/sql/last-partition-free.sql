-- There is room ahead in a table again.
-- Locks: the alert's row.
-- Plan: alert_open.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.tenant = ''
  and a.code = 'partition.last'
  and a.subject = :name::text
  and a.resolved_at is null
