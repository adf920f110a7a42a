-- Makes the cursors of another generation, which is not live: what its handlers add for the outside is suppressed.
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
