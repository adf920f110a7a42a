-- Holds a cursor for a transaction that does not move it: the replay of a parked event.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: lost, paused, or held for a comparison; read-cursor tells which.
select c.effects_after::text as effects_after, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.state = 'running'
  and (c.hold_at is null or c.hold_until < pawl.now())
for no key update
