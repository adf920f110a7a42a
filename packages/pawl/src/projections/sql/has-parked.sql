-- Whether a cursor has parked keys at all. Only its holder parks, so a holder that finds none need not ask again.
-- Locks: none.
-- Plan: parked_key_pkey.
-- No row: none.
select 1 as has_parked
from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
limit 1
