-- A page of staged rows of the given kinds, with what each record was at the submission's baseline.
-- Locks: none.
-- Plan: submission_row_pkey, record_version_pkey.
-- Rows: the next ones after line :after.
select r.line::text as line, r.kind, r.type, r.key, r.data::text as after, v.data::text as before
from pawl.submission_row r
left join lateral (
  select w.data
  from pawl.record_version w
  where r.kind in ('U', '=', 'J', 'D')
    and w.tenant = r.tenant
    and w.record_id = r.record_id
    and w.number <= :committed::bigint
  order by w.number desc
  limit 1
) v on true
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.line > :after::bigint
  and r.kind = any (:kinds::text[])
order by r.line
limit :limit::integer
