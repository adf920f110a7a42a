-- Says that an incarnation holds its liveness lock. Only from now on does a free lock raise a question.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row is returned.
update pawl.worker w
set locks = true
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and not w.locks
