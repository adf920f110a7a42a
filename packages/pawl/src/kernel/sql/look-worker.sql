-- Reads the incarnation's own row: whether it is still open, and whether a watcher asks if it lives.
-- Locks: none.
-- Plan: worker_pkey.
-- No row: the incarnation was closed. The worker goes on under a new one.
select w.asked_by is not null as is_asked
from pawl.worker w
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and w.closed_at is null
