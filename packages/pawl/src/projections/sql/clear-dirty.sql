-- Takes away the marks of an entity that are visible now, if one of them is due still. What the refresh reads next is at least as new as the
-- events behind them.
-- Locks: the marks; the entity's advisory lock is held by the transaction.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row: somebody else refreshed it, or tried and put it off, just before.
delete from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
  and d.entity = :entity::text
  and exists (
    select from pawl.dirty m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.entity = :entity::text
      and m.due_at <= pawl.now()
  )
returning d.position
