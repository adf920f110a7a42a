-- Removes what the events of one record say, and notes who did it and why. Their places in the log stay. The caller holds the scope's lock.
-- Locks: those events' rows.
-- Plan: record_pkey, record_version_pkey, submission_pkey. Reads the events of the days on which the record was changed; no index serves
-- it, because every append would pay for it.
-- One row: how many events were emptied.
with written as materialized (
  select min(u.submitting_at) - interval '1 day' as first_at, max(u.ended_at) + interval '1 day' as last_at
  from pawl.record r
  join pawl.record_version v on v.tenant = r.tenant and v.record_id = r.id
  join pawl.submission u on u.tenant = v.tenant and u.id = v.submission
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = :type::text
    and r.key = :key::text
),
gone as (
  update pawl.event e
  set payload = null,
    headers = '{"erased": true}'
  where e.created_at >= (select w.first_at from written w)
    and e.created_at <= (select w.last_at from written w)
    and e.tenant = :tenant::text
    and e.aggregatetype = :record_set::text
    and e.aggregateid = :scope::text
    and e.type in ('record.created', 'record.updated')
    and e.payload ->> 'type' = :type::text
    and e.payload ->> 'key' = :key::text
  returning 1
),
noted as (
  insert into pawl.audit (tenant, actor, action, subject, reason, detail)
  select :tenant::text, left(:erased_by::text, 200), 'records.erase', left(:record_set::text || ' ' || :scope::text, 500), left(:reason::text, 2000),
    jsonb_build_object('type', :type::text, 'key', :key::text, 'events', c.events)
  from (select count(*) as events from gone) c
  where c.events > 0
)
select count(*)::integer as erased
from gone
