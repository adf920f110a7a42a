-- name: list-referring
-- A page of documents of some types, by id, that refer to the documents of some nodes by paths of some patterns, and whose bodies contain a given one.
-- Locks: none.
-- Plan: document_ref_to, document_pkey.
-- Rows: the documents, and one without an id that has the keys.
with found as materialized (
  select pawl.find_documents(:tenant::text, :own::bytea[], :refs::integer[], :ends::integer[]) as ids
),
filter as materialized (
  select f.ids[u.target] as to_id, u.pattern, u.nth
  from found f
  cross join lateral unnest(:targets::integer[], :patterns::text[]) with ordinality u(target, pattern, nth)
)
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links
from pawl.read_documents(:tenant::text, array(
  select p.from_id
  from filter f
  cross join lateral (
    select distinct r.from_id
    from pawl.document_ref r
    where r.tenant = :tenant::text
      and r.to_id = f.to_id
      and r.from_id > :after::bigint
      and array_to_string(r.path, '.') ~ f.pattern
      and exists (
        select
        from pawl.document d
        where d.tenant = :tenant::text
          and d.id = r.from_id
          and d.type = any (:types::text[])
          and (:body::jsonb is null or d.body @> :body::jsonb)
      )
      and not exists (
        select
        from filter o
        where o.nth > 1
          and not exists (
            select
            from pawl.document_ref q
            where q.tenant = :tenant::text
              and q.from_id = r.from_id
              and q.to_id = o.to_id
              and array_to_string(q.path, '.') ~ o.pattern
          )
      )
    order by r.from_id
    limit :limit::integer
  ) p
  where f.nth = 1
  order by p.from_id
)) r

-- name: referrers
-- Counts the references to a document, not its own, and lists a page of them: those after a reference, by the id of its document and its path.
-- Locks: none.
-- Plan: document_uuid, document_ref_to, document_pkey.
-- One row: the count, at most one more than count_max, and the list as JSON, null if it is empty. No row: there is no such document.
select c.count,
  (
    select json_agg(json_build_array(l.type, l.uuid, l.path, l.from_id::text) order by l.from_id, l.path)
    from (
      select d.type, d.uuid, r.path, r.from_id
      from pawl.document_ref r
      cross join lateral (
        select d.type, d.uuid
        from pawl.document d
        where d.tenant = :tenant::text
          and d.id = r.from_id
        -- A join of the two in the order of ids would read the documents of the tenant from the first.
        offset 0
      ) d
      where r.tenant = :tenant::text
        and r.to_id = t.id
        and r.from_id <> t.id
        and r.from_id >= :after_id::bigint
        and (r.from_id > :after_id::bigint or r.path > :after_path::text[])
      order by r.from_id, r.path
      limit :limit::integer
    ) l
  )::text as items
from (
  select t.id, t.type
  from pawl.document t
  where t.tenant = :tenant::text
    and t.uuid = :uuid::uuid
  offset 0
) t
cross join lateral (
  select count(*)::integer as count
  from (
    select
    from pawl.document_ref r
    where r.tenant = :tenant::text
      and r.to_id = t.id
      and r.from_id <> t.id
    limit :count_max::integer + 1
  ) l
) c
where t.type = any (:types::text[])

-- name: dependents
-- Counts the documents that have the key of a document in their bodies or keys, by level and type. A document counts at its first level.
-- Locks: none.
-- Plan: document_uuid, document_ref_to, document_pkey.
-- One row: the levels as JSON, null if there are none, and how many times documents were reached, at most one more than count_max. No row: there is no such document.
with recursive reached as (
  select t.id, 0 as depth, true as is_in_key
  from (
    select t.id, t.type
    from pawl.document t
    where t.tenant = :tenant::text
      and t.uuid = :uuid::uuid
    offset 0
  ) t
  where t.type = any (:types::text[])
  union
  select r.from_id, w.depth + 1, r.in_key
  from reached w
  cross join lateral (
    select r.from_id, r.in_key
    from pawl.document_ref r
    where r.tenant = :tenant::text
      and r.to_id = w.id
      and r.from_id <> w.id
  ) r
  where w.is_in_key
),
-- By several ways a document is reached several times.
met as materialized (
  select w.id, w.depth
  from reached w
  limit :count_max::integer + 2
),
counted as materialized (
  select m.id, min(m.depth) as depth
  from met m
  group by m.id
),
level as (
  select c.depth, d.type, count(*) as count
  from counted c
  cross join lateral (
    select d.type
    from pawl.document d
    where d.tenant = :tenant::text
      and d.id = c.id
      -- Without statistics an index-only scan of document_by_type has the same cost.
      and d.revision > 0
  ) d
  where c.depth > 0
  group by c.depth, d.type
)
select (select count(*)::integer - 1 from met) as counted,
  (select json_agg(json_build_array(l.depth, l.type, l.count) order by l.depth, l.type)::text from level l) as levels
where exists (select from counted)

-- name: walk-documents
-- Brings the next documents that refer to some to the stored keys of these, with events.
-- Locks: their rows.
-- Plan: a call.
-- One row: how many references were walked, where the walk goes on, what is left of it, and documents to refresh.
select w.walked, w.onward::text as onward, w.targets::text as targets, w.afters::text as afters, w.rest::text as rest
from pawl.walk_documents(:tenant::text, :targets::bigint[], :afters::bigint[], :limit::integer) w
