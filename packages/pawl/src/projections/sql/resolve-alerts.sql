-- Closes alerts whose cause is gone.
-- Locks: their rows, SKIP LOCKED.
-- Plan: the few open alerts, and an index of each table. With rows in them: parked_key_pkey, dirty_due.
-- Rows: what was closed.
with over as materialized (
  select a.tenant, a.id
  from pawl.alert a
  where a.resolved_at is null
    and (
      (
        a.code = 'projection.parked'
        and not exists (select from pawl.parked_key k where k.tenant = a.tenant and k.name = a.subject)
        and not exists (select from pawl.dirty d where d.tenant = a.tenant and d.name = a.subject and d.due_at = 'infinity')
      )
      or (
        a.code = 'projection.breaker'
        and not exists (select from pawl.cursor c where c.tenant = a.tenant and c.name = a.subject and c.state = 'paused')
      )
      or (
        a.code in ('cursor.latched', 'cursor.stale')
        and not exists (
          select
          from pawl.cursor c
          where c.tenant = a.tenant
            and 'cursor.' || c.state = a.code
            and format('%s generation %s shard %s', c.name, c.generation, c.shard) = a.subject
        )
      )
    )
  for update skip locked
)
update pawl.alert a
set resolved_at = pawl.now()
from over o
where a.tenant = o.tenant
  and a.id = o.id
returning a.code, a.subject
