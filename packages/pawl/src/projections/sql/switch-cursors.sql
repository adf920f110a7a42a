-- Moves the right to let effects out from the live generation to another: above everything that the live one let out, and not below it.
-- Locks: the cursors' rows, which the transaction holds.
-- Plan: cursor_pkey, cursor_position_pkey.
-- Rows: the cursors of the generation that becomes live.
with old as (
  update pawl.cursor c
  set effects_after = null
  from pawl.cursor_at b
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :live::integer
    and b.tenant = c.tenant
    and b.name = c.name
    and b.generation = c.generation
    and b.shard = c.shard
  returning c.shard, greatest(b.position, b.effects_after) as border
)
update pawl.cursor c
set effects_after = o.border
from old o
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = o.shard
returning c.shard
