-- Submissions that hold their slot and whose job is dead or gone, of all tenants.
-- Locks: none.
-- Plan: submission_slot, job_pkey.
-- No row: almost always.
select u.tenant, u.id::text as id
from pawl.submission u
left join lateral (
  select j.state
  from pawl.job j
  where j.tenant = u.tenant
    and j.id = u.job_id
  offset 0
) h on true
where u.state = 'submitting'
  and coalesce(h.state, 'dead') = 'dead'
order by u.tenant, u.scope_id
limit :limit::integer
