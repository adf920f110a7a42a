-- Opens a new incarnation of a worker and starts its lease.
-- Locks: none but its own new row.
-- Plan: an insert.
-- One row: its id.
insert into pawl.worker (name, host, pid, release, queues, kinds, concurrency, locks, lease_until)
values (:name::text, :host::text, :pid::integer, :release::text, :queues::text[], :kinds::text[], :concurrency::integer, :locks::boolean,
  pawl.now() + :lease_ms::bigint * interval '1 millisecond')
returning id
