-- Stops a cursor whose log is not the one that it read, and tells a person. It holds nothing back from then on but its place.
-- Locks: the cursor's row, then the alert's.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, stopped already, or at another position than the one that was looked for in the log.
update pawl.cursor c
set state = 'latched',
  reason = left(:reason::text, 2000)
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.state = 'running'
  and exists (
    select
    from pawl.cursor_at a
    where a.tenant = :tenant::text
      and a.name = :name::text
      and a.generation = :generation::integer
      and a.shard = :shard::integer
      and a.position = :position::bigint
  )
returning pawl.raise_alert(c.tenant, 'cursor.latched', format('%s generation %s shard %s', c.name, c.generation, c.shard), c.reason)::text as raised
