-- Parks a key: its later events wait, other keys go on, and a person is told.
-- Locks: its own new row; the cursor's is held by the transaction. Then the alert's.
-- Plan: an insert.
-- One row, without meaning.
with parked as (
  insert into pawl.parked_key as k (tenant, name, generation, shard, key_tenant, key, reason, error, attempts)
  values (:tenant::text, :name::text, :generation::integer, :shard::integer, :key_tenant::text, :key::text, left(:reason::text, 2000),
    left(:error::text, 4000), :attempts::integer)
  on conflict (tenant, name, generation, shard, key_tenant, key)
  do update set state = 'parked', reason = excluded.reason, error = excluded.error, attempts = k.attempts + excluded.attempts, parked_at = pawl.now()
  returning k.tenant, k.name, k.reason
)
select pawl.raise_alert(p.tenant, 'projection.parked', p.name, p.reason)::text as raised
from parked p
