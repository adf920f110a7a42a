-- Who is submitting in a scope, and whether its job still lives. Read under the scope's lock, the answer stays true.
-- Locks: none.
-- Plan: submission_slot, job_pkey.
-- No row: the slot is free.
select s.id::text as id, s.submitting_at, s.job_id::text as job_id, coalesce(j.state, 'gone') as job_state
from pawl.submission s
left join pawl.job j on j.tenant = s.tenant and j.id = s.job_id
where s.tenant = :tenant::text
  and s.scope_id = :scope_id::bigint
  and s.state = 'submitting'
