-- Locks a projection: nobody else switches its generations until this transaction ends. In a statement of its own, so that the statements that
-- follow read the cursors as they are after whoever had the lock before.
-- Locks: the projection's row.
-- Plan: projection_pkey.
-- No row: there is no such projection.
select p.live_generation
from pawl.projection p
where p.tenant = :tenant::text
  and p.name = :name::text
for update
