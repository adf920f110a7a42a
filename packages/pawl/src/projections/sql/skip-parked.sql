-- Takes a parked event away without applying it.
-- Locks: its cursor's row, as everyone does who adds or takes events of a parked key; then its own.
-- Plan: by an index of each table. With rows in them: cursor_pkey, parked_event_position.
-- No row: no such event is parked.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
  order by c.generation, c.shard
  for no key update
)
delete from pawl.parked_event e
using held h
where e.tenant = h.tenant
  and e.name = h.name
  and e.generation = h.generation
  and e.shard = h.shard
  and e.position = :position::bigint
returning e.generation, e.shard, e.key_tenant, e.key
