-- Which of these jobs are held under their fence and locked by somebody: a settle would wait for them.
-- Locks: the others' rows, SKIP LOCKED, until this statement ends; it waits for nobody.
-- Plan: job_pkey for each, with the array of settle.sql.
-- Rows: the locked ones. One that is gone or has another fence is not among them: its settle is refused without waiting.
with given as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  order by g.tenant, g.id
),
free as materialized (
  select j.tenant, j.id
  from given g
  join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id
  for update of j skip locked
)
select g.tenant, g.id
from given g
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id and j.fence = g.fence
where not exists (select from free f where f.tenant = g.tenant and f.id = g.id)
