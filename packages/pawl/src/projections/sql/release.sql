-- Gives a cursor back in order, so that another process takes it at its next look.
-- Locks: its row.
-- Plan: cursor_pkey.
-- No row: it was taken over before.
update pawl.cursor c
set holder = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
returning c.shard
