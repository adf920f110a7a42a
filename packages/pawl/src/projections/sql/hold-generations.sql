-- Lets the live generation and another come to one position: neither moves beyond the higher of the two, until the hold ends.
-- Locks: the cursors' rows of both, by generation and shard.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- Rows: one per shard, with where each stood when the statement began: whoever acts on it looks again, under a lock.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard, p.live_generation
  from pawl.projection p
  join pawl.cursor c on c.tenant = p.tenant and c.name = p.name and c.generation in (p.live_generation, :generation::integer)
  where p.tenant = :tenant::text
    and p.name = :name::text
  order by c.generation, c.shard
  for no key update of c
),
placed as materialized (
  select h.tenant, h.name, h.generation, h.shard, h.live_generation, c.position
  from held h
  join pawl.cursor_at c on c.tenant = h.tenant and c.name = h.name and c.generation = h.generation and c.shard = h.shard
),
top as materialized (
  select h.shard, max(h.position) as position
  from placed h
  group by h.shard
),
set_hold as (
  update pawl.cursor c
  set hold_at = t.position,
    hold_until = pawl.now() + :hold_ms::bigint * interval '1 millisecond'
  from held h
  join top t on t.shard = h.shard
  where c.tenant = h.tenant
    and c.name = h.name
    and c.generation = h.generation
    and c.shard = h.shard
)
select t.shard, t.position::text as hold_at, l.position::text as live, o.position::text as other
from top t
join placed l on l.shard = t.shard and l.generation = l.live_generation
join placed o on o.shard = t.shard and o.generation = :generation::integer
