-- Opens a new incarnation of a worker and starts its lease.
-- Locks: none but its own new rows.
-- Plan: two inserts.
-- One row: its id, and the nonce that each of its own writes names beside it.
with opened as (
  insert into pawl.worker (look_ms, lease_until)
  values (:look_ms::integer, pawl.now() + :lease_ms::bigint * interval '1 millisecond')
  returning id, nonce
),
described as (
  insert into pawl.worker_process (id, name, host, pid, release, queues, kinds, concurrency, sessions)
  select o.id, :name::text, :host::text, :pid::integer, :release::text, :queues::text[], :kinds::text[], :concurrency::integer,
    :sessions::text
  from opened o
)
select o.id, o.nonce
from opened o
