-- Moves a cursor past one event without applying it. Its holder finds it at another position and goes on from there.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: the cursor has moved meanwhile.
update pawl.cursor c
set position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  attempts = 0,
  crashes = 0,
  tried_at = null,
  last_error = null,
  moved_at = pawl.now()
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.position = :from_position::bigint
returning c.shard
