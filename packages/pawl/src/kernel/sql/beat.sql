-- Renews the lease of an incarnation, and with it of everything that it holds, and answers a watcher's question. Also after the lease ended.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row: the incarnation was closed. The worker goes on under a new one.
update pawl.worker w
set seen_at = pawl.now(),
  lease_until = pawl.now() + :lease_ms::bigint * interval '1 millisecond',
  asked_by = null,
  asked_at = null
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and w.closed_at is null
returning w.id
