-- Which events of a range a person has skipped. Asked after the cursor's row is locked, as is done by whoever skips.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: skipped_event_pkey.
-- Rows: the skipped ones.
select e.event_id::text as event_id
from pawl.skipped_event e
where e.tenant = :tenant::text
  and e.name = :name::text
  and e.position between :from_position::bigint and :to_position::bigint
