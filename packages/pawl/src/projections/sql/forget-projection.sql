-- Removes the row of a projection or sink whose cursors are gone.
-- Locks: its row, which the transaction holds.
-- Plan: projection_pkey.
-- No row is returned.
delete from pawl.projection p
where p.tenant = :tenant::text
  and p.name = :name::text
