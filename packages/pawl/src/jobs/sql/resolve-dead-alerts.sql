-- Resolves the alerts about dead jobs that this transaction has locked, of kinds without a dead job.
-- Locks: none but what lock-dead-alerts.sql took.
-- Plan: alert_pkey, job_dead.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
from unnest(:tenants::text[], :ids::bigint[]) as g(tenant, id)
where a.tenant = g.tenant
  and a.id = g.id
  and (select true from pawl.job d where d.tenant = a.tenant and d.kind = a.subject and d.state = 'dead' limit 1) is null
