-- The last row is staged: what follows is counting.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it expired.
update pawl.submission u
set state = 'validating',
  revision = u.revision + 1,
  bytes = :bytes::bigint,
  digest = :digest::text,
  ignored_sheets = :ignored::text[],
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'uploading'
  and u.expires_at > pawl.now()
returning u.revision
