-- The rows of a submission with their whole content, for comparing them anew: an unchanged row is as its record was at the old baseline.
-- Locks: none.
-- Plan: submission_row_pkey, record_version_pkey.
-- Rows: the next ones after :after, in the order of their lines; tombstones are left out, they are found anew.
select r.line::text as line, r.type, r.key, coalesce(r.hash, v.hash)::text as hash, coalesce(r.data, v.data)::text as data,
  case when r.hash is null then v.classification else r.classification end as classification
from pawl.submission_row r
left join lateral (
  select w.hash, w.data, w.classification
  from pawl.record_version w
  where r.kind = '='
    and w.tenant = r.tenant
    and w.record_id = r.record_id
    and w.number <= :committed::bigint
  order by w.number desc
  limit 1
) v on true
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.line > :after::bigint
  and r.kind in ('C', 'U', '=')
order by r.line
limit :limit::integer
