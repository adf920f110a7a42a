-- Locks the open alerts about dead jobs of kinds that seem to have none left. While they are locked none of them is raised again, so
-- a look in the next statement decides: resolve-dead-alerts.sql.
-- Locks: those alert rows, SKIP LOCKED: whoever raises one just now has a dead job.
-- Plan: alert_open, job_dead.
-- Rows: the alerts.
select a.tenant, a.id
from pawl.alert a
where a.code = 'job.dead'
  and a.resolved_at is null
  and (select true from pawl.job d where d.tenant = a.tenant and d.kind = a.subject and d.state = 'dead' limit 1) is null
order by a.tenant, a.code, a.subject
limit :limit::integer
for update skip locked
