-- name: raise-failing
-- Raises the alert of a statement of the engine that keeps failing, or refreshes it.
-- Locks: that alert row.
-- Plan: the few open alerts.
-- One row.
select pawl.raise_alert('', 'engine.failing', :subject::text, :message::text, p_for => interval '10 minutes')

-- name: resolve-alert
-- Resolves an alert whose cause is gone. Of a statement that fails: another process where it still fails raises it again within a minute.
-- Locks: that alert row.
-- Plan: a call.
-- One row, without meaning.
select pawl.resolve_alert('', :code::text, :subject::text)::text as resolved

-- name: open-alerts
-- Everything that needs a person, newest first. :tenant null: of all tenants.
-- Locks: none.
-- Plan: a call.
-- No row: nothing needs attention.
select a.tenant, a.code, a.subject, a.message, a.count::float8 as count, a.first_at as "firstAt", a.last_at as "lastAt"
from pawl.open_alerts(:tenant::text) a
order by a.last_at desc
limit :limit::integer
