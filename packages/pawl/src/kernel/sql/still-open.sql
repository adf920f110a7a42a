-- Whether a transaction that was in progress in an earlier snapshot is still in progress.
-- Locks: none.
-- Plan: none.
-- One row: how many of them are still open.
select count(*)::integer as open
from (
  select x
  from pg_snapshot_xip(:snapshot::pg_snapshot) x
) was
where pg_xact_status(was.x) = 'in progress'
