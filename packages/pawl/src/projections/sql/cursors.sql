-- The cursors of one generation, or of the live one.
-- Locks: none.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- No row: there is no such generation.
select c.generation, c.shard, c.shards, c.kind, c.channel, c.state, c.position::text as position, c.event_id::text as event_id
from pawl.projection p
join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name and c.generation = coalesce(:generation::integer, p.live_generation)
where p.tenant = :tenant::text
  and p.name = :name::text
order by c.shard
