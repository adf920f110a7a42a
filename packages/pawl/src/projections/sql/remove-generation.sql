-- Removes a generation that is not live, or all of them: cursors, parked keys and marks.
-- Locks: its rows.
-- Plan: by an index of each table. With rows in them: cursor_pkey, cursor_position_pkey, parked_key_pkey, parked_event_pkey, dirty_due.
-- No row is returned.
with marks as (
  delete from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and (:generation::integer is null or d.generation = :generation::integer)
),
events as (
  delete from pawl.parked_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
    and (:generation::integer is null or e.generation = :generation::integer)
),
keys as (
  delete from pawl.parked_key k
  where k.tenant = :tenant::text
    and k.name = :name::text
    and (:generation::integer is null or k.generation = :generation::integer)
),
positions as (
  delete from pawl.cursor_position p
  where p.tenant = :tenant::text
    and p.name = :name::text
    and (:generation::integer is null or p.generation = :generation::integer)
)
delete from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
