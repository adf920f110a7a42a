-- Which part of the log is kept: the position before its first, and its last; and its generation.
-- Locks: none.
-- Plan: sequencer_pkey.
-- One row.
select s.removed_until::text as before, s.position::text as head, s.generation
from pawl.log_head s
where s.tenant = ''
