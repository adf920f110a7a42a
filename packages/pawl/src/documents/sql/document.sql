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
  from (
    select d.id, d.type
    from pawl.document d
    where d.tenant = :tenant::text
      and d.uuid = :uuid::uuid
    offset 0
  ) d
  where d.type = any (:types::text[])
)) r

-- name: get-by-key
-- Reads the document of the last node, by its key or an old one.
-- Locks: none.
-- Plan: calls.
-- Rows: as for get-by-uuid.
select r.id, r.uuid, r.type, r.revision, r.created_at, r.changed_at, r.body, r.links
from pawl.read_documents(:tenant::text, array(
  select f.ids[cardinality(f.ids)]
  -- Without the offset it is called wherever ids is named.
  from (select pawl.find_documents(:tenant::text, :own::bytea[], :refs::integer[], :ends::integer[], true) as ids offset 0) f
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

-- name: other-type
-- The first of these types whose documents were written with another shape.
-- Locks: none.
-- Plan: document_type_pkey, document_by_type.
-- No row: all are stored with these shapes, or have no documents.
select t.name, t.definition::text as stored
from unnest(:names::text[], :shapes::text[]) s(name, shape)
cross join lateral (
  select t.name, t.definition
  from pawl.document_type t
  where t.tenant = :tenant::text
    and t.name = s.name
    and t.shape_hash <> s.shape
    and exists (
      select
      from pawl.document d
      where d.tenant = :tenant::text
        and d.type = t.name
    )
  offset 0
) t
order by t.name
limit 1

-- name: refresh-documents
-- Brings documents to the current keys of what they refer to, with events.
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

-- name: find-documents
-- Draws the receipt of a write, unless it has one, and finds the documents of its nodes.
-- Locks: none.
-- Plan: calls.
-- One row: the receipt, null if the one given was never drawn; the ids by node.
select case
    when :receipt::bigint is null then nextval('pawl.document_receipt')
    when :receipt::bigint <= coalesce(pg_sequence_last_value('pawl.document_receipt'::regclass), 0) then :receipt::bigint
  end::text as receipt,
  to_jsonb(pawl.find_documents(:tenant::text, :own::bytea[], :refs::integer[], :ends::integer[], :is_old::boolean)::text[])::text as ids

-- name: insert-documents
-- Inserts new documents of one type.
-- Locks: KEY SHARE on their targets; waits for a transaction that holds one of their keys.
-- Plan: a call.
-- Rows: what became of each, by its number.
select i.n, i.outcome, i.uuid::text as uuid, i.holder::text as holder
from pawl.insert_documents(:tenant::text, :type::text, :shape::text, :docs::jsonb, :targets::bigint[], :nodes::jsonb) i

-- name: write-documents
-- Writes existing documents, each by itself.
-- Locks: KEY SHARE on their targets, then the document, then its new key.
-- Plan: a call each.
-- Rows: the answers, in the given order.
select pawl.write_document(:tenant::text, w.write)::text as answer
from jsonb_array_elements(:writes::jsonb) with ordinality w(write, n)
order by w.n

-- name: put-documents
-- Writes existing documents, all or none.
-- Locks: the documents by id, KEY SHARE on their targets, their new keys by hash.
-- Plan: a call.
-- One row: the answers, or the first refusal.
select pawl.put_documents(:tenant::text, :writes::jsonb)::text as answer

-- name: delete-document
-- Deletes a document that nothing refers to.
-- Locks: the document, once nothing refers to it.
-- Plan: document_type_pkey, a call.
-- One row: the answer.
select case
    when exists (
      select
      from pawl.document_type t
      where t.tenant = :tenant::text
        and t.name = :type::text
        and t.shape_hash <> :shape::text
      offset 0
    ) then '{"outcome": "model"}'
    else pawl.delete_document(:tenant::text, :type::text, :uuid::uuid, :revision::integer)::text
  end as answer

-- name: keep-types
-- Stores definitions.
-- Locks: the type's own, exclusive, where its shape changes.
-- Plan: a call.
-- One row: a type whose documents were written with another shape; without the stored one: it is changed, call again. No row: all are stored.
select k.name, k.stored::text as stored
from pawl.keep_document_types(:tenant::text, :types::jsonb) k
