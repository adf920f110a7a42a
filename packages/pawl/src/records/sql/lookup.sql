-- What the rows of one batch meet: the committed version of each, as of the submission's baseline, and whether its content is the same.
-- Locks: none.
-- Plan: record_pkey, then record_version_pkey for each; a key that nobody has costs one probe.
-- Rows: one per given row, in order. A record without a committed version counts as new: who wrote it has not committed, and if it does,
-- this submission is superseded; if it fails, the record is purged.
select g.ordinal::integer as ordinal, coalesce(v.record_id, nextval('pawl.record_id'))::text as record_id, v.record_id is null as is_new, v.status,
  v.number::text as number, coalesce(v.hash = g.hash, false) as is_same, case when v.hash <> g.hash then v.data::text end as data
from unnest(:types::text[], :keys::text[], :hashes::uuid[]) with ordinality as g(type, key, hash, ordinal)
left join lateral (
  select r.id
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = g.type
    and r.key = g.key
  offset 0
) r on true
left join lateral (
  select w.record_id, w.number, w.status, w.hash, w.data
  from pawl.record_version w
  where w.tenant = :tenant::text
    and w.record_id = r.id
    and w.number <= :committed::bigint
  order by w.number desc
  limit 1
) v on true
order by g.ordinal
