-- Starts a job that was held until its process was empty. From now on its time runs, and a crash counts.
-- Locks: the job row.
-- Plan: job_pkey, pawl.worker by primary key.
-- One row: it may start. No row: it is no longer held, or its incarnation is closed.
update pawl.job j
set claimed_at = pawl.now(),
  run_until = pawl.now() + :timeout_ms::bigint * interval '1 millisecond'
where j.tenant = :tenant::text
  and j.id = :id::bigint
  and j.fence = :fence::bigint
  and exists (
    select
    from pawl.worker w
    where w.tenant = ''
      and w.id = :worker::integer
      and w.nonce = :nonce::uuid
      and w.closed_at is null
  )
returning j.id
