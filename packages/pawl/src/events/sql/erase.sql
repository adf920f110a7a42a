-- Removes what the events of one key say, and notes who did it and why. Their places in the log stay.
-- Locks: those events' rows.
-- Plan: reads every partition; no index serves it, because every append would pay for it.
-- One row: how many events were emptied.
with gone as (
  update pawl.event e
  set payload = null,
    headers = '{"erased": true}'
  where e.tenant = :tenant::text
    and e.aggregatetype = :aggregatetype::text
    and e.aggregateid = :aggregateid::text
    and e.payload is not null
  returning 1
),
noted as (
  insert into pawl.audit (tenant, actor, action, subject, reason, detail)
  select :tenant::text, :actor::text, 'events.erase', left(:aggregatetype::text || ' ' || :aggregateid::text, 500), :reason::text,
    jsonb_build_object('aggregatetype', :aggregatetype::text, 'key', :aggregateid::text, 'events', count(*))
  from gone
)
select count(*)::integer as erased
from gone
