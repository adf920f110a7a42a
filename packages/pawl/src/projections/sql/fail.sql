-- Counts a failed attempt at the event after the position, so that another holder goes on counting.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: lost, or moved by an operator.
update pawl.cursor c
set attempts = c.attempts + 1,
  last_error = left(:error::text, 4000)
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.position = :from_position::bigint
returning c.attempts
