-- An entity that the live generation or another has still to refresh. Those that wait for a person are not meant.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: projection_pkey, dirty_due.
-- No row: there is none.
select d.generation, d.entity
from pawl.projection p
join pawl.dirty d on d.tenant = p.tenant
  and d.name = p.name
  and d.generation in (p.live_generation, :generation::integer)
where p.tenant = :tenant::text
  and p.name = :name::text
  and d.due_at < 'infinity'
limit 1
