-- Remembers that an event was skipped, for generations that are still to come to it, and forgets those whose events are gone.
-- Locks: its own new row, and the projection's row against deletion.
-- Plan: an insert, skipped_event_pkey, sequencer_pkey.
-- No row is returned.
with gone as (
  delete from pawl.skipped_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
    and e.position <= (select s.removed_until from pawl.log_head s where s.tenant = '')
)
insert into pawl.skipped_event (tenant, name, position, event_id)
values (:tenant::text, :name::text, :position::bigint, :event_id::uuid)
on conflict (tenant, name, position) do update set event_id = excluded.event_id
