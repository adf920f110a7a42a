-- One tick: gives positions to what became visible since the last one; without a limit to all of it, however long that takes.
-- Locks: the sequencer's row, SKIP LOCKED, and only when there is something to do.
-- Plan: a call. The function switches sequential scans off and keeps to the index of events.
-- One row: how it went.
select t.outcome, t.sequenced, t.head, t.generation
from pawl.sequence_events(:limit::integer) t
