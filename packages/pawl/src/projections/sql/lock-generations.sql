-- Locks the cursors of the live generation and of another, or of all: none of their handlers is in a transaction until this one ends, and none begins.
-- Locks: the projection's row and the cursors' rows, by generation and shard.
-- Plan: projection_pkey, cursor_pkey.
-- Rows: the cursors.
select c.generation, c.shard, p.live_generation
from pawl.projection p
join pawl.cursor c on c.tenant = p.tenant
  and c.name = p.name
  and (:generation::integer is null or c.generation in (p.live_generation, :generation::integer))
where p.tenant = :tenant::text
  and p.name = :name::text
order by c.generation, c.shard
for update of p, c
