-- Which of these sessions work on a statement now.
-- Locks: none.
-- Plan: a scan of the sessions that are there, in memory.
-- Rows: those that do. One that is missing has ended, or waits for its client.
select a.pid
from pg_catalog.pg_stat_activity a
where a.pid = any (:pids::integer[])
  and a.state = 'active'
