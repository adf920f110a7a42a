-- What the rows of one batch meet: the committed version of each, as of the submission's baseline, and whether its content is the same.
-- Locks: none.
-- Plan: record_pkey, then record_version_pkey for each; a key that nobody has costs one probe.
-- Rows: one for each given row that is new or differs, with its old data; and one for all that are the same, as arrays: thousands of rows would
-- cost the client more than the comparison. A record without a committed version counts as new: who wrote it has not committed, and if it
-- does, this submission is superseded; if it fails, the record is purged.
with met as materialized (
  select g.ordinal, v.record_id, v.number, v.status, coalesce(v.hash = g.hash, false) as is_same, case when v.hash <> g.hash then v.data end as data
  from unnest(:types::text[], :keys::text[], :hashes::uuid[]) with ordinality as g(type, key, hash, ordinal)
  left join lateral (
    -- One subquery and not two: the planner would keep the versions of the second in a cache that nothing hits.
    select l.record_id, l.number, l.status, l.hash, l.data
    from pawl.record r
    cross join lateral (
      select w.record_id, w.number, w.status, w.hash, w.data
      from pawl.record_version w
      where w.tenant = :tenant::text
        and w.record_id = r.id
        and w.number <= :committed::bigint
      order by w.number desc
      limit 1
    ) l
    where r.tenant = :tenant::text
      and r.scope_id = :scope_id::bigint
      and r.type = g.type
      and r.key = g.key
    offset 0
  ) v on true
)
select m.ordinal::integer as ordinal, coalesce(m.record_id, nextval('pawl.record_id'))::text as record_id, m.record_id is null as is_new,
  coalesce(m.status <> 'DELETED', false) as is_live, m.number::text as number, m.data::text as data, null as same_ordinals, null as same_ids, null as same_numbers
from met m
where not m.is_same
union all
select null, null, null, null, null, null, array_agg(m.ordinal)::text, array_agg(m.record_id)::text, array_agg(m.number)::text
from met m
where m.is_same
having count(*) > 0
