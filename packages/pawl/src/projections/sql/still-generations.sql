-- Lets every generation stand still, its refreshes too: a lock that waits for those that run would be passed by each that begins. It ends by itself.
-- Locks: the cursors' rows, by generation and shard.
-- Plan: cursor_pkey.
-- No row is returned.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
  order by c.generation, c.shard
  for no key update
)
update pawl.cursor c
set hold_at = 0,
  hold_until = pawl.now() + :hold_ms::bigint * interval '1 millisecond'
from held h
where c.tenant = h.tenant
  and c.name = h.name
  and c.generation = h.generation
  and c.shard = h.shard
