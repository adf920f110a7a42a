-- One tick: gives positions to what became visible since the last one.
-- Locks: the sequencer's row, SKIP LOCKED, and only when there is something to do.
-- Plan: a call. The function switches sequential scans off and keeps to the index of events.
-- One row: how it went.
select t.outcome, t.sequenced, t.head, t.generation, t.has_more
from pawl.sequence_events(:limit::integer) t
