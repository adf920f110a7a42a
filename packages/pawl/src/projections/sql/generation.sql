-- name: unrefreshed
-- An entity that the live generation or another has still to refresh. Those that wait for a person are not meant.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: projection_pkey, dirty_due.
-- No row: there is none.
select d.generation, d.entity
from pawl.projection p
join pawl.dirty d on d.tenant = p.tenant
  and d.name = p.name
  and d.generation in (p.live_generation, :generation::integer)
where p.tenant = :tenant::text
  and p.name = :name::text
  and d.due_at < 'infinity'
limit 1

-- name: add-generation
-- Makes the cursors of another generation, which is not live.
-- Locks: none but its own new rows.
-- Plan: inserts.
-- No row: the generation was there already.
with made as (
  insert into pawl.cursor (tenant, name, generation, shard, shards, kind, channel, max_lag)
  select :tenant::text, :name::text, :generation::integer, s, :shards::integer, :kind::text, :channel::text,
    :max_lag_ms::bigint * interval '1 millisecond'
  from generate_series(0, :shards::integer - 1) s
  on conflict do nothing
  returning shard
)
insert into pawl.cursor_position (tenant, name, generation, shard, position)
select :tenant::text, :name::text, :generation::integer, m.shard, 0
from made m
returning shard

-- name: remove-generation
-- Removes a generation that is not live, or all of them: cursors, parked keys and marks.
-- Locks: its rows.
-- Plan: by an index of each table. With rows in them: cursor_pkey, cursor_position_pkey, parked_key_pkey, parked_event_pkey, dirty_due.
-- No row is returned.
with marks as (
  delete from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and (:generation::integer is null or d.generation = :generation::integer)
),
events as (
  delete from pawl.parked_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
    and (:generation::integer is null or e.generation = :generation::integer)
),
keys as (
  delete from pawl.parked_key k
  where k.tenant = :tenant::text
    and k.name = :name::text
    and (:generation::integer is null or k.generation = :generation::integer)
),
positions as (
  delete from pawl.cursor_position p
  where p.tenant = :tenant::text
    and p.name = :name::text
    and (:generation::integer is null or p.generation = :generation::integer)
)
delete from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)

-- name: lock-generations
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

-- name: hold-generations
-- Lets the live generation and another come to one position: neither moves beyond the higher of the two, until the hold ends.
-- Locks: the cursors' rows of both, by generation and shard.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- Rows: one per shard, with both positions as they were when the statement began: the switch compares them again under a lock.
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

-- name: still-generations
-- Lets every generation stand still, its refreshes too: a lock that waits for those that run would be passed by each that begins. It ends by itself.
-- Locks: the cursors' rows, by generation and shard.
-- Plan: cursor_pkey.
-- No row is returned.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
  order by c.generation, c.shard
  for no key update
)
update pawl.cursor c
set hold_at = 0,
  hold_until = pawl.now() + :hold_ms::bigint * interval '1 millisecond'
from held h
where c.tenant = h.tenant
  and c.name = h.name
  and c.generation = h.generation
  and c.shard = h.shard

-- name: unhold-generations
-- Lets every generation go on.
-- Locks: the rows that are held.
-- Plan: cursor_pkey.
-- No row is returned.
update pawl.cursor c
set hold_at = null,
  hold_until = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.hold_at is not null

-- name: switch-cursors
-- Tells the cursors of two generations which of them is live.
-- Locks: the cursors' rows, which the transaction holds.
-- Plan: cursor_pkey.
-- Rows: the cursors.
update pawl.cursor c
set is_live = c.generation = :generation::integer
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation in (:live::integer, :generation::integer)
returning c.shard

-- name: switch-projection
-- Names the live generation: the one row that makes a switch.
-- Locks: the projection's row, which the transaction holds.
-- Plan: projection_pkey.
-- No row: it is gone.
update pawl.projection p
set live_generation = :generation::integer,
  switched_at = pawl.now()
where p.tenant = :tenant::text
  and p.name = :name::text
returning p.name
