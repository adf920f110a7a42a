-- Notes, after a crash, that the next event is about to be tried, alone: if this holder dies too, that is held against the event.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, or moved meanwhile; the write that follows tells which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update
)
update pawl.cursor_position p
set tried_at = p.position
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning p.shard
