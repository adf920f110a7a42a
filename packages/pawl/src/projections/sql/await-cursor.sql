-- Waits until every transaction that was moving a cursor has ended: after a commit without an answer, read-cursor then tells what became of it.
-- Locks: its row, for the moment.
-- Plan: cursor_pkey.
-- No row: its generation is gone.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
for no key update
