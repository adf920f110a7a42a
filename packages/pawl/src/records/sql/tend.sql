-- What a submission needs: how long until it expires, or whether the job that applies it is dead.
-- Locks: none.
-- Plan: submission_pkey, job_pkey.
-- No row: it is gone.
select u.state, u.record_set, u.scope_id::text as scope_id, u.job_id::text as job_id, u.number::text as number, coalesce(j.state, 'gone') as job_state,
  (extract(epoch from u.expires_at - pawl.now()) * 1000)::bigint::text as expires_in_ms
from pawl.submission u
left join pawl.job j on j.tenant = u.tenant and j.id = u.job_id
where u.tenant = :tenant::text
  and u.id = :id::bigint
