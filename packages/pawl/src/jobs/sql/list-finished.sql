-- A page of finished jobs, newest first.
-- Locks: none.
-- Plan: the newest partitions of job_history first.
-- No row: no such jobs beyond :before.
select h.tenant, h.id, h.queue, h.kind, h.outcome as state, h.priority, h.attempt, h.crashes, false as suspect, h.reason as last_error, h.holder,
  h.created_at, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.finished_at < coalesce(:before::timestamptz, 'infinity')
  and (:state::text is null or h.outcome = :state::text)
  and (:kind::text is null or h.kind = :kind::text)
  and (:queue::text is null or h.queue = :queue::text)
order by h.finished_at desc, h.id desc
limit :limit::integer
