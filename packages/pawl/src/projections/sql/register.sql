-- Makes a projection and its first cursors, once: whoever comes second finds them there. The first generation is live.
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
  insert into pawl.cursor (tenant, name, generation, shard, shards, kind, channel, effects_after, max_lag)
  select :tenant::text, :name::text, m.live_generation, s, :shards::integer, :kind::text, :channel::text, 0,
    :max_lag_ms::bigint * interval '1 millisecond'
  from made m, generate_series(0, :shards::integer - 1) s
  returning generation, shard
)
insert into pawl.cursor_position (tenant, name, generation, shard, position)
select :tenant::text, :name::text, c.generation, c.shard, :position::bigint
from cursors c
returning shard
