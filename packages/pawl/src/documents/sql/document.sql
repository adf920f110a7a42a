-- name: next-receipt
-- Draws a receipt: the order in which requests arrived.
-- Locks: none.
-- Plan: a call.
-- One row: the receipt.
select nextval('pawl.document_receipt')::text as receipt

-- name: get-by-uuid
-- Reads a document, with its references and the keys that fill them.
-- Locks: none.
-- Plan: document_uuid.
-- Rows: the document, and one without an id that has the keys. Only the latter: there is none of these types.
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links
from pawl.read_documents(:tenant::text, array(
  select d.id
  from pawl.document d
  where d.tenant = :tenant::text
    and d.uuid = :uuid::uuid
    and d.type = any (:types::text[])
)) r

-- name: get-by-key
-- Reads the document of the last node, by its key or an old one.
-- Locks: none.
-- Plan: calls.
-- Rows: as for get-by-uuid.
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links
from pawl.read_documents(:tenant::text, array(
  select f.ids[cardinality(f.ids)]
  from (select pawl.find_documents(:tenant::text, :own::bytea[], :refs::integer[], :ends::integer[], true) as ids) f
  where f.ids[cardinality(f.ids)] is not null
)) r

-- name: list-documents
-- A page of documents of some types, by id, whose bodies contain a given one.
-- Locks: none.
-- Plan: document_by_type.
-- Rows: the documents, and one without an id that has the keys.
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links
from pawl.read_documents(:tenant::text, array(
  select p.id
  from unnest(:types::text[]) t(type)
  cross join lateral (
    select d.id
    from pawl.document d
    where d.tenant = :tenant::text
      and d.type = t.type
      and d.id > :after::bigint
      and (:body::jsonb is null or d.body @> :body::jsonb)
    order by d.id
    limit :limit::integer
  ) p
  order by p.id
  limit :limit::integer
)) r

-- name: list-types
-- The types as they are stored.
-- Locks: none.
-- Plan: document_type_pkey.
-- Rows: one per type, by name.
select t.name, t.changed_at::text as changed_at, t.definition::text as definition
from pawl.document_type t
where t.tenant = :tenant::text
order by t.name

-- name: refresh-documents
-- Brings documents to the stored keys of what they refer to, with events.
-- Locks: their rows, none of which it waits for.
-- Plan: a call.
-- One row: those through which the walk goes on, and those that other transactions hold.
select r.onward::text as onward, r.locked::text as locked
from pawl.refresh_documents(:tenant::text, :ids::bigint[]) r

-- name: verify-documents
-- A page of documents, by id, as readers see them, and beside that what is stored.
-- Locks: none.
-- Plan: document_by_type.
-- Rows: as for list-documents, with the stored keys, identities and references.
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links, s.keys, s.identities, s.refs
from pawl.read_documents(:tenant::text, array(
  select p.id
  from unnest(:types::text[]) t(type)
  cross join lateral (
    select d.id
    from pawl.document d
    where d.tenant = :tenant::text
      and d.type = t.type
      and d.id > :after::bigint
    order by d.id
    limit :limit::integer
  ) p
  order by p.id
  limit :limit::integer
)) r
left join lateral (
  select d.keys::text as keys,
    (
      select json_agg(json_build_array(k.type, encode(k.hash, 'hex'), k.parts, k.refs::text[]) order by k.type)::text
      from pawl.document_key k
      where k.tenant = :tenant::text
        and k.document_id = d.id
        and k.alias_until is null
    ) as identities,
    (
      select json_agg(json_build_array(f.path, f.type, f.in_key, f.names))::text
      from pawl.document_ref f
      where f.tenant = :tenant::text
        and f.from_id = d.id
    ) as refs
  from pawl.document d
  where d.tenant = :tenant::text
    and d.id = r.id::bigint
) s on true
