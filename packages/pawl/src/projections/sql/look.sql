-- What of this process's definitions is held here, what is free, and how many living processes share it. A cursor that this process took without
-- getting the answer has a fence that it does not know: it is free, and not held here.
-- Locks: none.
-- Plan: cursor_pkey, worker_pkey, and the few rows of open workers.
-- Rows: one per definition that has cursors.
select d.n::integer as definition,
  count(*)::integer as shards,
  count(*) filter (where c.holder = :worker::integer and c.fence = any (:fences::bigint[]))::integer as mine,
  count(*) filter (
    where c.state = 'running'
      and (w.id is null or (c.holder = :worker::integer and c.fence <> all (:fences::bigint[])))
  )::integer as free,
  (
    select count(*)::integer
    from pawl.worker p
    where p.tenant = ''
      and p.closed_at is null
      and p.lease_until > pawl.now()
      and p.kinds @> array[d.kind]
  ) as peers
from unnest(:tenants::text[], :names::text[], :generations::integer[], :kinds::text[]) with ordinality as d(tenant, name, generation, kind, n)
join pawl.cursor c on c.tenant = d.tenant and c.name = d.name and c.generation = d.generation
left join pawl.worker w on w.tenant = '' and w.id = c.holder and w.closed_at is null and w.lease_until > pawl.now()
group by d.n, d.kind
