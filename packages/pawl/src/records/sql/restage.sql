-- The rows of a submission with their whole content, for comparing them anew: an unchanged row is as its record was at the old baseline.
-- Locks: none.
-- Plan: submission_row_pkey, record_version_pkey. A length is known without reading a long text.
-- Rows: the next ones after :after, in the order of their lines, none behind 4 MB; tombstones are left out, they are found anew.
select p.line::text as line, p.type, p.key, p.hash::text as hash, p.data::text as data, p.classification
from (
  select f.line, f.type, f.key, f.hash, f.data, f.classification,
    sum(octet_length(f.data::text)) over (order by f.line rows between unbounded preceding and 1 preceding) as bytes_before
  from (
    select r.line, r.type, r.key, coalesce(r.hash, v.hash) as hash, coalesce(r.data, v.data) as data,
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
  ) f
) p
where coalesce(p.bytes_before, 0) < 4000000
order by p.line
