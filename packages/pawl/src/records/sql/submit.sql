-- Takes the slot of its scope for a validated submission, or a failed one that is resumed, with the scope's next number. The caller holds the
-- scope's lock, has seen that the slot is free and the baseline current; the unique index would refuse anyone who had not.
-- Locks: the submission row, the scope row.
-- Plan: submission_pkey, record_scope_pkey.
-- No row: another state, another revision, or it expired.
with taken as (
  update pawl.submission u
  set state = 'submitting',
    revision = u.revision + 1,
    number = s.next_number,
    submitting_at = pawl.now(),
    ended_at = null,
    expires_at = null,
    job_id = :job_id::bigint,
    failures = 0,
    failure_class = null,
    error = null,
    applied_line = 0,
    applied_created = 0,
    applied_updated = 0,
    applied_deleted = 0
  from pawl.record_scope s
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = :state::text
    and (:revision::integer is null or u.revision = :revision::integer)
    and u.expires_at > pawl.now()
    and s.tenant = u.tenant
    and s.id = u.scope_id
    and s.revision = u.baseline
  returning u.tenant, u.scope_id, u.number, u.revision
)
update pawl.record_scope s
set next_number = s.next_number + 1
from taken t
where s.tenant = t.tenant
  and s.id = t.scope_id
returning t.number::text as number, t.revision
