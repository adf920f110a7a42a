-- Renews the lease of an incarnation, and with it of everything that it holds.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row: the incarnation was closed or its lease had ended. An ended lease is never revived; the worker starts anew.
update pawl.worker w
set seen_at = pawl.now(),
  lease_until = pawl.now() + :lease_ms::bigint * interval '1 millisecond'
where w.tenant = ''
  and w.id = :worker::integer
  and w.closed_at is null
  and w.lease_until > pawl.now()
returning w.id
