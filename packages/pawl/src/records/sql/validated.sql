-- The counts are known: the submission is validated, or invalid.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it expired.
update pawl.submission u
set state = :state::text,
  revision = u.revision + 1,
  created = :created::bigint,
  updated = :updated::bigint,
  unchanged = :unchanged::bigint,
  missing = :missing::bigint,
  deleted = :deleted::bigint,
  invalid_created = :invalid_created::bigint,
  invalid_updated = :invalid_updated::bigint,
  invalid_unkeyed = :invalid_unkeyed::bigint,
  errors = u.errors + :errors::bigint,
  last_line = :last_line::bigint,
  error = left(:error::text, 2000),
  ended_at = case when :state::text = 'invalid' then pawl.now() end,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'validating'
  and u.expires_at > pawl.now()
returning u.revision
