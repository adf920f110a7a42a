-- Claims the next ready jobs of a queue for one incarnation, with one new fence for all of them. The limits of their kinds are written into
-- the rows, so that a sweep by a process that does not define the kind obeys them.
-- Locks: the job rows it takes, SKIP LOCKED; it waits for nobody.
-- Plan: job_ready in order, then a TID scan. :after_due and :after_id start it behind entries that vacuum cannot remove yet.
-- No row: nothing is ready, or the incarnation is closed. An ended lease does not matter: a take-over closes the incarnation first.
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
    and not j.suspect
    and (j.due, j.id) > (:after_due::timestamptz, :after_id::bigint)
    and j.kind = any (:kinds::text[])
    and exists (select from holder)
  order by j.due, j.id
  limit :limit::integer
  for update skip locked
)
update pawl.job j
set state = 'running',
  fence = (select pawl.next_fence()),
  holder = h.id,
  attempt = j.attempt + 1,
  revision = j.revision + 1,
  claimed_at = h.now,
  max_attempts = coalesce(j.given_attempts, (:max_attempts::integer[])[array_position(:kinds::text[], j.kind)]),
  max_crashes = (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)],
  run_until = h.now + (:timeouts_ms::bigint[])[array_position(:kinds::text[], j.kind)] * interval '1 millisecond'
from holder h
where j.ctid = any (array(select p.ctid from picked p))
  and j.state = 'ready'
returning j.tenant, j.id, j.fence, j.kind, j.payload::text as payload, j.payload_version, j.attempt, j.max_attempts, j.crashes,
  j.headers::text as headers,
  case when isfinite(j.due) then (date_part('epoch', j.due) * 1000000)::bigint end as due_us
