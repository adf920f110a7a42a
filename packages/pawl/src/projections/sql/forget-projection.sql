-- Removes the row of a projection or sink whose cursors are gone, and what was skipped for it.
-- Locks: its rows, of which the transaction holds the first.
-- Plan: by an index of each table. With rows in them: projection_pkey, skipped_event_pkey.
-- No row is returned.
with skipped as (
  delete from pawl.skipped_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
)
delete from pawl.projection p
where p.tenant = :tenant::text
  and p.name = :name::text
