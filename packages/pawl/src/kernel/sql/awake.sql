-- Says that a worker is busy, so that enqueues need not notify it.
-- Locks: its own sleeper rows.
-- Plan: a short scan of the few sleepers.
-- No row is returned.
delete from pawl.sleeper s
where s.tenant = ''
  and s.worker = :worker::integer
