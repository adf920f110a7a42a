-- Whether the current transaction has added events by SQL.
-- Locks: none.
-- Plan: event_xid.
-- One row: 1 if it has, else 0.
select count(*)::integer as appended
from (
  select 1
  from pawl.event e
  where e.xid = pg_current_xact_id_if_assigned()
  limit 1
) x
