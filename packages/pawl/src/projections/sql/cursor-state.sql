-- Whether a cursor still runs: asked before calls begin whose end nobody else waits for.
-- Locks: none.
-- Plan: cursor_pkey.
-- No row: it is no longer held under this fence.
select c.state
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
