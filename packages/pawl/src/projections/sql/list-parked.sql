-- Parked keys and entities of a projection or sink, oldest first, with what waits behind each.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, parked_event_pkey, dirty_due.
-- No row: none is parked.
select k.generation, k.shard, k.key_tenant, k.key, k.state, k.reason, k.error, k.attempts, k.parked_at, e.events, e.first_position::text as first_position
from pawl.parked_key k
cross join lateral (
  select count(*)::integer as events, min(p.position) as first_position
  from pawl.parked_event p
  where p.tenant = k.tenant
    and p.name = k.name
    and p.generation = k.generation
    and p.shard = k.shard
    and p.key_tenant = k.key_tenant
    and p.key = k.key
) e
where k.tenant = :tenant::text
  and k.name = :name::text
union all
select d.generation, 0, '', d.entity, 'parked', 'The refresh failed.', max(d.last_error), max(d.attempts), min(d.parked_at),
  sum(cardinality(d.positions))::integer, min(d.position)::text
from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.due_at = 'infinity'
group by d.generation, d.entity
order by 9 nulls last, 4
limit :limit::integer
