-- Opens a new incarnation of a worker and starts its lease.
-- Locks: none but its own new row.
-- Plan: an insert.
-- One row: its id, and the nonce that each of its own writes names beside it.
insert into pawl.worker (name, host, pid, release, queues, kinds, concurrency, look_ms, lease_until)
values (:name::text, :host::text, :pid::integer, :release::text, :queues::text[], :kinds::text[], :concurrency::integer, :look_ms::integer,
  pawl.now() + :lease_ms::bigint * interval '1 millisecond')
returning id, nonce
