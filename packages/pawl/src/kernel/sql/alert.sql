-- name: list-alerts
-- Open alerts of a tenant, newest first.
-- Locks: none.
-- Plan: alert_open.
-- No row: nothing needs attention.
select a.tenant, a.code, a.subject, a.message, a.count, a.first_at, a.last_at
from pawl.alert a
where a.tenant = :tenant::text
  and a.resolved_at is null
order by a.last_at desc
limit :limit::integer

-- name: list-all-alerts
-- Open alerts of all tenants, newest first.
-- Locks: none.
-- Plan: alert_open.
-- No row: nothing needs attention.
select a.tenant, a.code, a.subject, a.message, a.count, a.first_at, a.last_at
from pawl.alert a
where a.resolved_at is null
order by a.last_at desc
limit :limit::integer

-- name: raise-failing
-- Raises the alert of a statement of the engine that keeps failing, or refreshes it.
-- Locks: that alert row.
-- Plan: the few open alerts.
-- One row.
select pawl.raise_alert('', 'engine.failing', :subject::text, :message::text)

-- name: resolve-failing
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
