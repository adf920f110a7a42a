-- Ends an upload before it could be validated: invalid (the file is not what it says) or failed (we, or the stream).
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it has ended or expired.
update pawl.submission u
set state = :state::text,
  revision = u.revision + 1,
  error = left(:error::text, 2000),
  errors = u.errors + :errors::bigint,
  bytes = :bytes::bigint,
  ignored_sheets = :ignored::text[],
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state in ('uploading', 'validating')
  and u.expires_at > pawl.now()
returning u.revision
