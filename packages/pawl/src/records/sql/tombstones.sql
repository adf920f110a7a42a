-- Stages a tombstone for every record of the types that a submission knows and that it leaves out, behind its last line.
-- Locks: none that others wait for.
-- Plan: record_pkey, submission_row_pkey, record_version_pkey. EXCEPT as in missing.sql.
-- Rows: how many were staged, and the last line of all.
with gone as materialized (
  select r.id, r.type, r.key
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = any (:types::text[])
  except
  select t.record_id, t.type, t.key
  from pawl.submission_row t
  where t.tenant = :tenant::text
    and t.submission = :id::bigint
),
added as (
  insert into pawl.submission_row (tenant, submission, line, record_id, kind, is_new, type, key)
  select :tenant::text, :id::bigint, :last_line::bigint + row_number() over (order by g.type, g.key), g.id, 'D', false, g.type, g.key
  from gone g
  cross join lateral (
    select w.status
    from pawl.record_version w
    where w.tenant = :tenant::text
      and w.record_id = g.id
      and w.number <= :committed::bigint
    order by w.number desc
    limit 1
  ) v
  where v.status <> 'DELETED'
  returning line
)
select count(*)::text as rows, coalesce(max(a.line), :last_line::bigint)::text as last_line
from added a
