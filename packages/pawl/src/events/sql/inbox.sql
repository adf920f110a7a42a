-- name: prune-inbox
-- Forgets expired ids of outside events, except those at the current position of their source: a reader that restarts sends them again, however
-- late.
-- Locks: those rows, SKIP LOCKED.
-- Plan: inbox_expiry, inbox_source_pkey.
-- One row: the number of ids.
with gone as (
  delete from pawl.inbox i
  where i.ctid = any (array(
    select k.ctid
    from pawl.inbox k
    where k.expires_at < (select pawl.now())
      and (
        k.position is null
        or k.position is distinct from (select s.position from pawl.inbox_source s where s.tenant = k.tenant and s.source = k.source)
      )
    limit :limit::integer
    for update skip locked
  ))
  returning 1
)
select count(*)::integer as removed
from gone

-- name: ingest
-- Appends the events of an outside source that are not in the inbox yet, and moves the source's position.
-- Locks: the source's row.
-- Plan: a call.
-- One row: the outcome, and the source's position before and after.
select i.outcome, i.was::text as was, i.reached::text as reached, i.ingested, i.repeated
from pawl.ingest_events(:tenant::text, :source::text, :position::bigint, :after::bigint, :events::jsonb, :keep_ms::bigint, :wake::boolean) i
