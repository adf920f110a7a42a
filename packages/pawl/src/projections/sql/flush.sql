-- Stores what a sink has finished: its position, and the ranges above it. Also while it is paused: what was under way then still ends.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, or moved by an operator; read-cursor tells which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.state
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update
)
update pawl.cursor_position p
set n = p.n + 1,
  position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  done = :done::int8multirange,
  crashes = 0,
  tried_at = null,
  moved_at = pawl.now()
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
returning h.state
