-- The versions of one record, newest first.
-- Locks: none.
-- Plan: record_scope_name, record_pkey, record_version_pkey, submission_pkey.
-- Rows: the next ones below :before.
select r.type, r.key, v.number::text as number, v.status, v.submission::text as submission, v.schema_version, v.classification, to_json(v.changed)::text as changed,
  v.data::text as data,
  v.is_erased, u.ended_at as committed_at, u.submitted_by, u.origin
from pawl.record_scope s
join pawl.record r on r.tenant = s.tenant and r.scope_id = s.id
join pawl.record_version v on v.tenant = r.tenant and v.record_id = r.id
left join pawl.submission u on u.tenant = v.tenant and u.id = v.submission
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
  and r.type = :type::text
  and r.key = :key::text
  and v.number <= s.committed
  and v.number < :before::bigint
order by v.number desc
limit :limit::integer
