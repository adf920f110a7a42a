-- Which of these keys are parked. Asked after the cursor's row is locked, so that it stays true until the transaction ends.
-- Locks: none.
-- Plan: parked_key_pkey.
-- Rows: the parked ones.
select k.key_tenant, k.key
from (
  select distinct u.key_tenant, u.key
  from unnest(:key_tenants::text[], :keys::text[]) as u(key_tenant, key)
) u
join pawl.parked_key k on k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = u.key_tenant
  and k.key = u.key
