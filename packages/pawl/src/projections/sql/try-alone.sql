-- Notes, after a crash, that the next event is about to be tried, alone: if this holder dies too, that is held against the event.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: lost, or moved meanwhile; the write that follows tells which.
update pawl.cursor c
set tried_at = c.position
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.position = :from_position::bigint
returning c.shard
