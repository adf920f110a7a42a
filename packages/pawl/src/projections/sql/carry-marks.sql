-- Gives the entities that the live generation has still to refresh, or has given up, to the one that becomes live: it may have refreshed them in
-- silence, and what a refresh adds for the outside is let out by the live one only.
-- Locks: none but its own new rows; the cursors' rows are held by the transaction, so no refresh is under way.
-- Plan: by an index of each table. With rows in them: dirty_due.
-- No row is returned.
insert into pawl.dirty (tenant, name, generation, entity, position, positions)
select d.tenant, d.name, :generation::integer, d.entity, d.position, d.positions
from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :live::integer
