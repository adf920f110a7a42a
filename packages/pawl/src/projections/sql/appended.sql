-- Whether the current transaction has added events by SQL.
-- Locks: none.
-- Plan: event_xid, sequencer_pkey. In a restored cluster old events may carry the ids of transactions that are to come: their numbers are lower.
-- One row: 1 if it has, else 0.
select count(*)::integer as appended
from (
  select 1
  from pawl.event e
  where e.xid = pg_current_xact_id_if_assigned()
    and e.seq > (select s.rebased_seq from pawl.log_head s where s.tenant = '')
  limit 1
) x
