-- Whether a transaction that was in progress in an earlier snapshot is still in progress. An id that this server has not given out yet is of
-- another one, before a failover or a restore: that transaction is no more.
-- Locks: none.
-- Plan: none.
-- One row: how many of them are still open.
select count(*)::integer as open
from (
  select x
  from pg_snapshot_xip(:snapshot::pg_snapshot) x
) was
where case when was.x < pg_snapshot_xmax(pg_current_snapshot()) then pg_xact_status(was.x) = 'in progress' end
