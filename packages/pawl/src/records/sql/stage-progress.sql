-- Counts a batch of staged rows, in the transaction that staged it, and gives the upload more time.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: this upload was started over elsewhere, or its submission expired: its fence is not the current one.
update pawl.submission u
set lines = u.lines + :lines::bigint,
  last_line = greatest(u.last_line, :last_line::bigint),
  bytes = :bytes::bigint,
  errors = u.errors + :errors::bigint,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'uploading'
  and u.expires_at > pawl.now()
returning u.lines::text as lines
