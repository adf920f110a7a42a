-- A submission that is given up, after everything it wrote was purged. Its slot is free with this.
-- Locks: the submission row.
-- Plan: its own submission by the slot or the primary key.
-- No row: it is not submitting under this number, or something is not purged.
update pawl.submission u
set state = 'failed',
  revision = u.revision + 1,
  failure_class = :failure_class::text,
  error = left(:error::text, 2000),
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = 0
  and u.applied_created + u.applied_updated + u.applied_deleted = 0
returning u.revision, pawl.raise_alert(u.tenant, 'submission.failed', u.record_set,
  format('submission %s of %s failed (%s): %s', u.id, u.record_set, :failure_class::text, left(:error::text, 1000)))::text as alerted
