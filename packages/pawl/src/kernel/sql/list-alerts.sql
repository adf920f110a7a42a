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
