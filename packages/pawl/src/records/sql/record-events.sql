-- One event per changed record of a submission, in its committing transaction, which holds the scope: so the events of one record are in order.
-- Locks: none that others wait for.
-- Plan: record_pkey, record_version_pkey; an insert into event.
-- No row is returned.
insert into pawl.event (tenant, aggregatetype, aggregateid, type, payload)
select :tenant::text, :record_set::text, :scope::text, 'record.' || lower(v.status), jsonb_build_object('set', :record_set::text, 'scope', :scope::jsonb, 'type', r.type,
  'key', r.key, 'submission', v.submission::text, 'number', v.number::text, 'changed', to_jsonb(v.changed), 'data', v.data)
from pawl.record r
cross join lateral (
  select w.status, w.submission, w.number, w.changed, w.data
  from pawl.record_version w
  where w.tenant = r.tenant
    and w.record_id = r.id
    and w.number = :number::bigint
  offset 0
) v
where r.tenant = :tenant::text
  and r.scope_id = :scope_id::bigint
order by r.type, r.key
