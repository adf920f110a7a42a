-- Locks the open alert about failed submissions of a set, so that none is raised between the look of resolve-alert.sql and its write.
-- Locks: the alert row.
-- Plan: alert_open.
-- No row: none is open.
select a.id
from pawl.alert a
where a.tenant = :tenant::text
  and a.code = 'submission.failed'
  and a.subject = :record_set::text
  and a.resolved_at is null
for update
