-- Which part of the log is kept: the position before its first, and its last.
-- Locks: none.
-- Plan: sequencer_pkey.
-- One row.
select s.removed_until::text as before, s.position::text as head
from pawl.sequencer s
where s.tenant = ''
