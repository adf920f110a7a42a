-- The scope has moved since this was compared with it: what its preview says is no longer what would be applied.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: another state or another revision.
update pawl.submission u
set state = 'superseded',
  revision = u.revision + 1,
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond',
  error = left(:error::text, 2000)
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = :state::text
  and (:revision::integer is null or u.revision = :revision::integer)
returning u.revision
