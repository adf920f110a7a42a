-- Stops a cursor whose log is not the one that it read, and tells a person. It holds nothing back from then on but its place.
-- Locks: the cursor's row, then the alert's.
-- Plan: cursor_pkey.
-- No row: lost, or stopped already.
update pawl.cursor c
set state = 'latched',
  reason = left(:reason::text, 2000)
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.state = 'running'
returning pawl.raise_alert(c.tenant, 'cursor.latched', format('%s generation %s shard %s', c.name, c.generation, c.shard), c.reason)::text as raised
