-- A page of records of a scope in the order of their keys, as they are committed or were at a number. With a number that stays the same, pages
-- fit together whatever is committed between them.
-- Locks: none.
-- Plan: record_scope_name, record_pkey in order, record_version_pkey. Nothing is sorted. Data are made a text once, in the inner query.
-- Rows: the next ones after (:after_type, :after_key), none behind :bytes_max; bytes are those up to each; pinned is the number that they were
-- read at.
with scope as materialized (
  select s.id, least(coalesce(:number::bigint, s.committed), s.committed) as number
  from pawl.record_scope s
  where s.tenant = :tenant::text
    and s.record_set = :record_set::text
    and s.scope = :scope::text
)
select p.type, p.key, p.number::text as number, p.status, p.submission::text as submission, p.schema_version, p.classification,
  to_json(p.changed)::text as changed, p.data, p.is_erased, (select s.number from scope s)::text as pinned, p.bytes::integer as bytes
from (
  select f.type, f.key, f.number, f.status, f.submission, f.schema_version, f.classification, f.changed, f.data, f.is_erased,
    sum(coalesce(octet_length(f.data), 0)) over (order by f.type, f.key rows unbounded preceding) as bytes
  from (
    select r.type, r.key, v.number, v.status, v.submission, v.schema_version, v.classification, v.changed, v.data::text as data, v.is_erased
    from pawl.record r
    cross join lateral (
      select w.number, w.status, w.submission, w.schema_version, w.classification, w.changed, w.data, w.is_erased
      from pawl.record_version w
      where w.tenant = :tenant::text
        and w.record_id = r.id
        and w.number <= (select s.number from scope s)
      order by w.number desc
      limit 1
    ) v
    where r.tenant = :tenant::text
      -- Not a join: with one value for the scope the index has the order of the page, and the scan ends with the page.
      and r.scope_id = (select s.id from scope s)
      and (r.type, r.key) > (:after_type::text, :after_key::text)
      and (:type::text is null or r.type = :type::text)
      and (:with_deleted::boolean or v.status <> 'DELETED')
      and (:filters::text[] is null or v.data::jsonb @> any (:filters::jsonb[]))
    order by r.type, r.key
    limit :limit::integer
  ) f
) p
where p.bytes - coalesce(octet_length(p.data), 0) < :bytes_max::integer
order by p.type, p.key
