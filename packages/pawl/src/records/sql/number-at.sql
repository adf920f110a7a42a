-- The number that was committed at a time.
-- Locks: none.
-- Plan: submission_number.
-- One row: 0 when nothing was committed by then.
select coalesce(max(u.number), 0)::text as number
from pawl.submission u
where u.tenant = :tenant::text
  and u.scope_id = :scope_id::bigint
  and u.state = 'submitted'
  and u.ended_at <= :at::timestamptz
