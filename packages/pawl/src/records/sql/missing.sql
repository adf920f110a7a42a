-- Records of the types that a submission knows that are committed as of its baseline and that it leaves out, in the order of their keys, at most :limit.
-- Locks: none.
-- Plan: record_pkey, submission_row_pkey, record_version_pkey. The two sets are subtracted by EXCEPT, which sorts or hashes; an anti-join of
-- rows that were just staged would be planned as a loop, because nothing is known about them yet.
-- Rows: the next ones after (:after_type, :after_key).
with gone as materialized (
  select r.id, r.type, r.key
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and (r.type, r.key) > (:after_type::text, :after_key::text)
    and r.type = any (:types::text[])
  except
  select t.record_id, t.type, t.key
  from pawl.submission_row t
  where t.tenant = :tenant::text
    and t.submission = :id::bigint
    and t.kind <> 'D'
)
select g.type, g.key, g.id::text as record_id, v.data::text as data
from gone g
cross join lateral (
  select w.status, w.data
  from pawl.record_version w
  where w.tenant = :tenant::text
    and w.record_id = g.id
    and w.number <= :committed::bigint
  order by w.number desc
  limit 1
) v
where v.status <> 'DELETED'
order by g.type, g.key
limit :limit::integer
