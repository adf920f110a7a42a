-- One record, as it is committed or was at a number.
-- Locks: none.
-- Plan: record_scope_name, record_pkey, record_version_pkey.
-- No row: there was no such record then.
select r.type, r.key, v.number::text as number, v.status, v.submission::text as submission, v.schema_version, v.classification, to_json(v.changed)::text as changed,
  v.data::text as data,
  v.is_erased
from pawl.record_scope s
join pawl.record r on r.tenant = s.tenant and r.scope_id = s.id
cross join lateral (
  select w.number, w.status, w.submission, w.schema_version, w.classification, w.changed, w.data, w.is_erased
  from pawl.record_version w
  where w.tenant = r.tenant
    and w.record_id = r.id
    and w.number <= least(coalesce(:number::bigint, s.committed), s.committed)
  order by w.number desc
  limit 1
) v
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
  and r.type = :type::text
  and r.key = :key::text
