-- A page of live jobs, newest first.
-- Locks: none.
-- Plan: job_pkey backwards.
-- No row: no such jobs beyond :before.
select j.tenant, j.id, j.queue, j.kind, j.state, j.priority, j.attempt, j.crashes, j.suspect, j.last_error, j.holder, j.created_at, j.run_at,
  j.revision
from pawl.job j
where j.tenant = :tenant::text
  and j.id < coalesce(:before::bigint, 9223372036854775807)
  and (:state::text is null or j.state = :state::text)
  and (:kind::text is null or j.kind = :kind::text)
  and (:queue::text is null or j.queue = :queue::text)
order by j.id desc
limit :limit::integer
