-- One event per record that a submission changes, in its committing transaction, which holds the scope: so the events of one record are in order.
-- They are read from its staged rows, which its versions were written from and which stay until the commit.
-- Locks: none that others wait for.
-- Plan: submission_row_pkey; an insert into event.
-- No row is returned.
insert into pawl.event (tenant, aggregatetype, aggregateid, type, payload)
select :tenant::text, :record_set::text, :scope::text, case r.kind when 'C' then 'record.created' when 'U' then 'record.updated' else 'record.deleted' end,
  jsonb_build_object('set', :record_set::text, 'scope', :scope::jsonb, 'type', r.type, 'key', r.key, 'submission', r.submission::text, 'number', :number::text,
    'changed', to_jsonb(r.changed), 'data', r.data)
from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.kind in ('C', 'U', 'D')
order by r.line
