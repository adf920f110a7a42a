-- Notes of closed incarnations that they were found to hold nothing, so that sweeps pass over them.
-- Locks: their worker rows.
-- Plan: worker_live.
-- No row is returned.
update pawl.worker w
set emptied_at = pawl.now()
where w.tenant = ''
  and w.id = any (:workers::integer[])
  and w.closed_at is not null
  and w.emptied_at is null
