-- A page of what a committed submission changed, with what each record was before. It looks at every record of the scope once per page.
-- Locks: none.
-- Plan: record_pkey, record_version_pkey.
-- Rows: the next ones after (:after_type, :after_key).
select r.type, r.key, v.data::text as after, p.data::text as before
from pawl.record r
cross join lateral (
  select w.status, w.data
  from pawl.record_version w
  where w.tenant = r.tenant
    and w.record_id = r.id
    and w.number = :number::bigint
  offset 0
) v
left join lateral (
  select w.data
  from pawl.record_version w
  where w.tenant = r.tenant
    and w.record_id = r.id
    and w.number < :number::bigint
  order by w.number desc
  limit 1
) p on true
where r.tenant = :tenant::text
  and r.scope_id = :scope_id::bigint
  and (r.type, r.key) > (:after_type::text, :after_key::text)
  and v.status = :status::text
order by r.type, r.key
limit :limit::integer
