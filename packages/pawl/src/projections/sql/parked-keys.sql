-- The parked keys of a cursor.
-- Locks: none.
-- Plan: parked_key_pkey.
-- No row: none is parked.
select k.key_tenant, k.key
from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
