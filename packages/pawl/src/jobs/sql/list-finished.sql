-- A page of finished jobs, newest first by id, which is by the time of their enqueue.
-- Locks: none.
-- Plan: job_history_id backwards in every day, merged.
-- No row: no such jobs beyond :before.
select h.tenant, h.id, h.queue, h.kind, h.outcome as state, h.priority, h.attempt, h.crashes, false as suspect, h.reason as last_error, h.holder,
  h.created_at, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id < coalesce(:before::bigint, 9223372036854775807)
  and (:state::text is null or h.outcome = :state::text)
  and (:kind::text is null or h.kind = :kind::text)
  and (:queue::text is null or h.queue = :queue::text)
order by h.id desc
limit :limit::integer
