-- One job by id, live or finished.
-- Locks: none.
-- Plan: job_pkey, then job_history_id in the partitions from the day that the id carries, or from :since.
-- No row: there is no such job for this tenant, or its history has been removed by retention; or the clock was days ahead when the id was
-- made, and the job finished before its day.
select j.tenant, j.id, j.fence, j.revision, j.queue, j.kind, j.state, j.priority, j.attempt, j.max_attempts, j.crashes, j.snoozes, j.suspect,
  j.payload, j.payload_version, j.headers, null::jsonb as result, j.progress, j.last_error, j.holder, j.created_at, j.run_at, j.claimed_at,
  j.run_until, null::timestamptz as finished_at, null::integer as ran_ms
from pawl.job j
where j.tenant = :tenant::text
  and j.id = :id::bigint
union all
select h.tenant, h.id, h.fence, null, h.queue, h.kind, h.outcome, h.priority, h.attempt, null, h.crashes, null, false, h.payload,
  h.payload_version, h.headers, h.result, h.progress, h.reason, h.holder, h.created_at, null, null,
  null, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
  and h.finished_at >= coalesce(:since::timestamptz, to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days')
