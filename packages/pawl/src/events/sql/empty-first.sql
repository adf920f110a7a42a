-- Removes events of long ago from the open-ended first partition, which is never dropped. Only those that the log has.
-- Locks: those rows.
-- Plan: event_first in full; it is empty but for events that were given a time of their own.
-- No row is returned.
delete from pawl.event_first e
where pawl.has_position(e.xid, e.seq, e.created_at)
