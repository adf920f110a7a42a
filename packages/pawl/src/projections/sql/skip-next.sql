-- Moves a cursor past one event without applying it. Its holder finds it at another position and goes on from there.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: the cursor has moved meanwhile.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
  for no key update
)
update pawl.cursor_position p
set n = p.n + 1,
  position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  attempts = 0,
  crashes = 0,
  tried_at = null,
  last_error = null,
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
returning p.shard
