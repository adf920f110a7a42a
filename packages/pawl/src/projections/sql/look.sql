-- What of this process's definitions is held here, what is free, and how many living processes share it. A cursor that this process took without
-- getting the answer has a fence that it does not know: it is free, and not held here.
-- Locks: none.
-- Plan: cursor_pkey, pawl.live_workers(), worker_process_pkey.
-- Rows: one per definition that has cursors.
with open as materialized (
  select p.id, p.kinds
  from pawl.worker_process p
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
)
select d.n::integer as definition,
  count(*)::integer as shards,
  count(*) filter (where c.holder = :worker::integer and c.fence = any (:fences::bigint[]))::integer as mine,
  count(*) filter (
    where c.state = 'running'
      and (w.id is null or (c.holder = :worker::integer and c.fence <> all (:fences::bigint[])))
  )::integer as free,
  (
    select count(*)::integer
    from open p
    where p.kinds @> array[d.kind]
  ) as peers
from unnest(:tenants::text[], :names::text[], :generations::integer[], :kinds::text[]) with ordinality as d(tenant, name, generation, kind, n)
join pawl.cursor c on c.tenant = d.tenant and c.name = d.name and c.generation = d.generation
left join open w on w.id = c.holder
group by d.n, d.kind
