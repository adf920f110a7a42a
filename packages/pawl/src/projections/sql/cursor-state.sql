-- Whether a cursor still runs, and where it stands: asked before calls begin whose end nobody else waits for, and now and then by who is idle.
-- Locks: none.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: it is no longer held under this fence.
select c.state, c.position::text as position
from pawl.cursor_at c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
