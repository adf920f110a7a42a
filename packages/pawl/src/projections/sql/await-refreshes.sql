-- Waits until every refresh that took its entity before a pause has ended. The pause is committed, so that none begins meanwhile.
-- Locks: the cursors' rows, by generation and shard, for the moment.
-- Plan: cursor_pkey.
-- Rows: the cursors.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
order by c.generation, c.shard
for update
