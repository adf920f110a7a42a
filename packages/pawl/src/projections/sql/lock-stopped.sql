-- Locks the cursors that do not run. In a statement of its own: a sink that is paused still stores what it had begun, and whoever resumes it reads
-- its position as it is then.
-- Locks: their rows, by generation and shard.
-- Plan: cursor_pkey.
-- No row: none is paused, stale or latched.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
  and c.state <> 'running'
order by c.generation, c.shard
for no key update
