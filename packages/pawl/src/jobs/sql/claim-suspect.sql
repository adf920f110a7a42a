-- Claims one suspect: a job whose process died while it may have run. The claimer runs nothing else meanwhile.
-- Locks: one job row, SKIP LOCKED; it waits for nobody.
-- Plan: job_suspect in order, then a TID scan.
-- No row: no suspect of these kinds waits, or the incarnation is closed.
with holder as materialized (
  select w.id, pawl.now() as now
  from pawl.worker w
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
),
picked as materialized (
  select j.ctid
  from pawl.job j
  where j.queue = :queue::text
    and j.state = 'ready'
    and j.suspect
    and j.kind = any (:kinds::text[])
    and exists (select from holder)
  order by j.due, j.id
  limit 1
  for update skip locked
)
update pawl.job j
set state = 'running',
  fence = (select pawl.next_fence()),
  holder = h.id,
  attempt = j.attempt + 1,
  revision = j.revision + 1,
  claimed_at = h.now,
  run_until = h.now + (:timeouts_ms::bigint[])[array_position(:kinds::text[], j.kind)] * interval '1 millisecond'
from holder h
where j.ctid = any (array(select p.ctid from picked p))
  and j.state = 'ready'
returning j.tenant, j.id, j.fence, j.kind, j.payload, j.payload_version, j.attempt, j.max_attempts, j.crashes, j.headers,
  coalesce(to_char(j.due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '-infinity') as due
