-- Resolves the alert of a statement of the engine that succeeds again. Another process where it still fails raises it again within a minute.
-- Locks: that alert row.
-- Plan: the few open alerts.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.tenant = ''
  and a.code = 'engine.failing'
  and a.subject = left(:subject::text, 500)
  and a.resolved_at is null
