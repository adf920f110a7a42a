-- Stores what a sink has finished: its position, and the ranges above it. Also while it is paused: what was under way then still ends.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: lost, or moved by an operator; read-cursor tells which.
update pawl.cursor c
set position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  done = :done::int8multirange,
  crashes = 0,
  tried_at = null,
  moved_at = pawl.now()
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.position = :from_position::bigint
returning c.state
