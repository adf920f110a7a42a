-- Takes away the marks of an entity that are visible now. What the refresh reads next is at least as new as the events behind them.
-- Locks: the marks; the entity's advisory lock is held by the transaction.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row: somebody else refreshed it just before.
delete from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
  and d.entity = :entity::text
returning d.position
