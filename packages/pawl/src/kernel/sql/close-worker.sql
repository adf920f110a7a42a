-- Closes an incarnation for ever, by its own process. What it still holds is taken over by the next rescue.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row: it was closed already.
with closed as (
  update pawl.worker w
  set closed_at = pawl.now(),
    close_reason = :reason::text
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
  returning w.id
),
awake as (
  delete from pawl.sleeper s
  using closed x
  where s.tenant = ''
    and s.worker = x.id
)
select c.id
from closed c
