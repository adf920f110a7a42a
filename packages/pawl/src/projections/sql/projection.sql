-- name: lock-projection
-- Locks a projection: no other transaction switches its generations until this one ends. In a statement of its own, so that the next ones read the
-- cursors as the previous lock holder left them.
-- Locks: the projection's row.
-- Plan: projection_pkey.
-- No row: there is no such projection.
select p.live_generation
from pawl.projection p
where p.tenant = :tenant::text
  and p.name = :name::text
for update

-- name: register
-- Creates a projection and its first cursors, once: a second caller finds them. The first generation is live.
-- Locks: none but its own new rows; a second caller waits for the first.
-- Plan: inserts.
-- No row: it was there already.
with made as (
  insert into pawl.projection (tenant, name, kind, live_generation)
  values (:tenant::text, :name::text, :kind::text, :generation::integer)
  on conflict do nothing
  returning live_generation
),
cursors as (
  insert into pawl.cursor (tenant, name, generation, shard, shards, kind, channel, is_live, max_lag)
  select :tenant::text, :name::text, m.live_generation, s, :shards::integer, :kind::text, :channel::text, true,
    :max_lag_ms::bigint * interval '1 millisecond'
  from made m, generate_series(0, :shards::integer - 1) s
  returning generation, shard
)
insert into pawl.cursor_position (tenant, name, generation, shard, position)
select :tenant::text, :name::text, c.generation, c.shard, :position::bigint
from cursors c
returning shard

-- name: read-projection
-- A projection and its generations.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey.
-- No row: it is not registered.
select p.kind, p.live_generation, c.generation, c.shards, c.channel, min(c.position)::text as position
from pawl.projection p
left join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name
where p.tenant = :tenant::text
  and p.name = :name::text
group by p.kind, p.live_generation, c.generation, c.shards, c.channel
order by c.generation

-- name: hold-projections
-- Which of these projections and sinks are there, after every transaction that was forgetting one of them has ended.
-- Locks: their rows against deletion, in order, for the moment.
-- Plan: projection_pkey.
-- Rows: those that are there.
select p.tenant, p.name
from unnest(:tenants::text[], :names::text[]) u(tenant, name)
join pawl.projection p on p.tenant = u.tenant and p.name = u.name
order by p.tenant, p.name
for key share of p

-- name: forget-projection
-- Removes the row of a projection or sink whose cursors are gone, and what was skipped for it.
-- Locks: its rows, of which the transaction holds the first.
-- Plan: by an index of each table. With rows in them: projection_pkey, skipped_event_pkey.
-- No row is returned.
with skipped as (
  delete from pawl.skipped_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
)
delete from pawl.projection p
where p.tenant = :tenant::text
  and p.name = :name::text

-- name: audit
-- Stores an operator's action and its reason, and notifies the holders of cursors: idle ones read their rows.
-- Locks: none but its own new row.
-- Plan: a call.
-- One row, when it is kept.
select pawl.write_audit(:tenant::text, :actor::text, :action::text, :subject::text, :reason::text, :detail::jsonb)::text as written,
  pg_notify('pawl_cursors', '') is null as told
