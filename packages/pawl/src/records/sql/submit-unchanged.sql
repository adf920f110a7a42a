-- Takes the slot for a submission that changes nothing and commits it at once, under the scope's next number: there is nothing to apply. The
-- caller holds the scope's lock, has seen that the slot is free and the baseline current.
-- Locks: the submission row, the scope row.
-- Plan: submission_pkey, record_scope_pkey.
-- No row: another state, another revision, it expired, or it does change something.
with ended as (
  update pawl.submission u
  set state = 'submitted',
    revision = u.revision + 1,
    number = s.next_number,
    submitting_at = pawl.now(),
    ended_at = pawl.now(),
    expires_at = null,
    job_id = null,
    failures = 0,
    failure_class = null,
    error = null
  from pawl.record_scope s
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'validated'
    and u.revision = :revision::integer
    and u.created + u.updated + u.deleted = 0
    and u.expires_at > pawl.now()
    and s.tenant = u.tenant
    and s.id = u.scope_id
    and s.revision = u.baseline
  returning u.tenant, u.scope_id, u.number, u.revision, u.unchanged, u.attributes
)
update pawl.record_scope s
set committed = e.number,
  next_number = e.number + 1,
  revision = s.revision + 1,
  attributes = coalesce(s.attributes || e.attributes, s.attributes, e.attributes)
from ended e
where s.tenant = e.tenant
  and s.id = e.scope_id
returning s.scope, e.number::text as number, e.revision, e.unchanged::text as unchanged
