-- A new submission, compared with the scope as it is committed in this very statement's snapshot.
-- Locks: the scope row, FOR KEY SHARE by its foreign key.
-- Plan: record_scope_pkey.
-- One row: its id and its baseline.
insert into pawl.submission (tenant, record_set, scope_id, origin, state, fence, baseline, baseline_number, baseline_live, received_at_revision, types,
  attributes, schema_version, missing_policy, format, name, submitted_by, rebased_from, expires_at)
select s.tenant, s.record_set, s.id, :origin::text, 'uploading', pawl.next_fence(), s.revision, s.committed, s.live, coalesce(:received_at::bigint, s.revision),
  :types::text[], :attributes::jsonb, :schema_version::integer, :missing_policy::text, :format::text, left(:name::text, 500), left(:submitted_by::text, 500), :rebased_from::bigint,
  pawl.now() + :keep_ms::bigint * interval '1 millisecond'
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
returning id::text as id, fence::text as fence, baseline::text as baseline, baseline_number::text as committed, baseline_live::text as live,
  types::text as types
