-- Cursors behind the head of the log, and parked keys: none of the events after them can be removed.
-- Locks: none.
-- Plan: the few rows of cursors and parked keys.
-- Rows: one per cursor and parked key, the one that holds most first.
select 'cursor' as what, c.tenant, c.name, c.generation, c.shard, null::text as key, c.state, c.position,
  (s.position - c.position)::text as behind, c.moved_at as since
from pawl.cursor_at c
cross join pawl.log_head s
where c.state <> 'stale'
  and c.position < s.position
  and s.tenant = ''
union all
select 'parked key', k.tenant, k.name, k.generation, k.shard, k.key, k.state, min(e.position) - 1, (s.position - min(e.position) + 1)::text, k.parked_at
from pawl.parked_key k
join pawl.parked_event e on e.tenant = k.tenant
  and e.name = k.name
  and e.generation = k.generation
  and e.shard = k.shard
  and e.key_tenant = k.key_tenant
  and e.key = k.key
cross join pawl.log_head s
where s.tenant = ''
group by k.tenant, k.name, k.generation, k.shard, k.key_tenant, k.key, k.state, k.parked_at, s.position
order by 8
limit 1000
