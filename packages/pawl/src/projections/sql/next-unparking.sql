-- The next event of each key that is to be replayed.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: parked_key_unparking, parked_event_pkey.
-- No row: nothing is to be replayed. A null position: the key has no event left.
select k.key_tenant, k.key, e.position::text as position
from pawl.parked_key k
left join lateral (
  select p.position
  from pawl.parked_event p
  where p.tenant = k.tenant
    and p.name = k.name
    and p.generation = k.generation
    and p.shard = k.shard
    and p.key_tenant = k.key_tenant
    and p.key = k.key
  order by p.position
  limit 1
) e on true
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.state = 'unparking'
limit 100
