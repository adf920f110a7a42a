-- Puts a refresh off: for a while, or, without a delay, until a person or the next change of the entity asks for it.
-- Locks: the marks, then the alert's row.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row: somebody else refreshed it meanwhile.
with delayed as (
  update pawl.dirty d
  set due_at = case when :delay_ms::bigint is null then 'infinity' else pawl.now() + :delay_ms::bigint * interval '1 millisecond' end,
    parked_at = case when :delay_ms::bigint is null then coalesce(d.parked_at, pawl.now()) end
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.entity = :entity::text
  returning d.tenant, d.name
)
select case when :delay_ms::bigint is null then pawl.raise_alert(d.tenant, 'projection.parked', d.name, :reason::text)::text end as raised
from delayed d
limit 1
