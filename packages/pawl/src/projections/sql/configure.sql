-- Brings what a definition may change at any time up to date.
-- Locks: rows that differ.
-- Plan: cursor_pkey.
-- No row: they agree.
update pawl.cursor c
set max_lag = :max_lag_ms::bigint * interval '1 millisecond'
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.max_lag is distinct from :max_lag_ms::bigint * interval '1 millisecond'
returning c.shard
