-- Says up to which position events may be gone, before they go.
-- Locks: the sequencer's row.
-- Plan: sequencer_pkey.
-- No row is returned.
update pawl.sequencer s
set removed_until = greatest(s.removed_until, :until::bigint)
where s.tenant = ''
