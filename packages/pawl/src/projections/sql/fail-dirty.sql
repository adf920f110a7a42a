-- Counts a failed refresh on every mark of the entity.
-- Locks: the marks.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row: somebody else refreshed it meanwhile.
with failed as (
  update pawl.dirty d
  set attempts = 1 + (
      select max(m.attempts)
      from pawl.dirty m
      where m.tenant = d.tenant
        and m.name = d.name
        and m.generation = d.generation
        and m.entity = d.entity
    ),
    last_error = left(:error::text, 4000)
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.entity = :entity::text
  returning d.attempts, d.position
)
select max(f.attempts)::integer as attempts, max(f.position)::text as position
from failed f
having count(*) > 0
