-- Starts an upload over: a new fence, which refuses whoever staged rows before, a new baseline, and the rules of who reads it now.
-- Locks: the submission row.
-- Plan: record_scope_pkey; its own submission by the scope or the primary key.
-- No row: it is not an upload that stopped.
update pawl.submission u
set state = 'uploading',
  revision = u.revision + 1,
  fence = pawl.next_fence(),
  baseline = s.revision,
  baseline_number = s.committed,
  baseline_live = s.live,
  received_at_revision = s.revision,
  types = :types::text[],
  attributes = :attributes::jsonb,
  schema_version = :schema_version::integer,
  missing_policy = :missing_policy::text,
  format = :format::text,
  name = left(:name::text, 500),
  submitted_by = left(:submitted_by::text, 500),
  lines = 0,
  last_line = 0,
  bytes = 0,
  errors = 0,
  digest = null,
  ignored_sheets = '{}',
  error = null,
  ended_at = null,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
from pawl.record_scope s
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.scope_id = :scope_id::bigint
  and u.origin = 'upload'
  and u.state in ('uploading', 'validating', 'upload-failed')
  and u.expires_at > pawl.now()
  and s.tenant = u.tenant
  and s.id = u.scope_id
returning u.id::text as id, u.fence::text as fence, u.baseline::text as baseline, u.baseline_number::text as committed, u.baseline_live::text as live,
  u.types::text as types
