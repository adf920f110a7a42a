-- The commit of a submission: the scope's committed number becomes its own, and from then on every reader sees all of it. The counts are
-- proved by a constraint of the submission's row. The caller holds its job by the fence, and the scope by its lock.
-- Locks: the scope row, the submission row.
-- Plan: record_scope_pkey; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number.
with ended as (
  update pawl.submission u
  set state = 'submitted',
    revision = u.revision + 1,
    failures = 0,
    failure_class = null,
    error = null,
    ended_at = pawl.now()
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'submitting'
    and u.number = :number::bigint
  returning u.tenant, u.scope_id, u.number, u.created, u.updated, u.unchanged, u.deleted, u.attributes
)
update pawl.record_scope s
set committed = e.number,
  revision = s.revision + 1,
  live = s.live + e.created - e.deleted,
  attributes = coalesce(s.attributes || e.attributes, s.attributes, e.attributes)
from ended e
where s.tenant = e.tenant
  and s.id = e.scope_id
  and s.committed < e.number
returning s.scope, s.revision::text as revision, e.created::text as created, e.updated::text as updated, e.unchanged::text as unchanged,
  e.deleted::text as deleted
