-- Whether an entity is due. Asked before a transaction begins: to take one locks the cursor's row, which costs a transaction id.
-- Locks: none.
-- Plan: dirty_due.
-- No row: none is.
select 1 as is_due
from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
  and d.due_at <= pawl.now()
order by d.due_at, d.id
limit 1
