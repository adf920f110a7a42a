-- One event per record that a put or append changed, in its transaction, which holds the scope: so the events of one record are in order.
-- Locks: none that others wait for.
-- Plan: record_version_pkey for each of the given records; an insert into event.
-- One row: how many.
with added as (
  insert into pawl.event (tenant, aggregatetype, aggregateid, type, payload)
  select :tenant::text, :record_set::text, :scope::text, 'record.' || lower(v.status), jsonb_build_object('set', :record_set::text, 'scope', :scope::jsonb, 'type', g.type,
    'key', g.key, 'submission', v.submission::text, 'number', v.number::text, 'changed', to_jsonb(v.changed), 'data', v.data)
  from unnest(:record_ids::bigint[], :types::text[], :keys::text[]) with ordinality as g(record_id, type, key, ordinal)
  cross join lateral (
    select w.status, w.submission, w.number, w.changed, w.data
    from pawl.record_version w
    where w.tenant = :tenant::text
      and w.record_id = g.record_id
      and w.number = :number::bigint
    offset 0
  ) v
  order by g.ordinal
  returning 1
)
select count(*)::integer as added
from added
