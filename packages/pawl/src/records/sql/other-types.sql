-- How many live records of a scope, as of a number, are of types that its set does not have any more.
-- Locks: none.
-- Plan: record_pkey, record_version_pkey. The types are found by skipping from one to the next: most scopes have no record of another.
-- One row: the count.
with recursive found (type) as (
  select (select min(r.type) from pawl.record r where r.tenant = :tenant::text and r.scope_id = :scope_id::bigint)
  union all
  select (select min(r.type) from pawl.record r where r.tenant = :tenant::text and r.scope_id = :scope_id::bigint and r.type > f.type)
  from found f
  where f.type is not null
)
select count(*)::text as live
from found f
cross join lateral (
  select r.id
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = f.type
  offset 0
) o
cross join lateral (
  select w.status
  from pawl.record_version w
  where w.tenant = :tenant::text
    and w.record_id = o.id
    and w.number <= :committed::bigint
  order by w.number desc
  limit 1
) v
where f.type <> all (:types::text[])
  and v.status <> 'DELETED'
