-- Puts events of parked keys behind each other, in the transaction that moves the cursor past them.
-- Locks: its own new rows, and their keys' rows against deletion.
-- Plan: an insert.
-- No row is returned.
insert into pawl.parked_event (tenant, name, generation, shard, key_tenant, key, position)
select :tenant::text, :name::text, :generation::integer, :shard::integer, u.key_tenant, u.key, u.position
from unnest(:key_tenants::text[], :keys::text[], :positions::bigint[]) as u(key_tenant, key, position)
on conflict do nothing
