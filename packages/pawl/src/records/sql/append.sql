-- Writes a few versions and commits them at once, as a submission of its own: a put, or a delta that the caller computed. The caller holds the
-- scope's lock and has seen that its slot is free.
-- Locks: the scope row.
-- Plan: record_scope_pkey; inserts into submission, record and record_version.
-- One row: the submission, and the scope's new numbers.
with given as materialized (
  select g.record_id, g.kind, g.is_new, g.type, g.key, g.hash, g.classification, g.data, g.changed
  from json_to_recordset(:rows::json) as g(record_id bigint, kind text, is_new boolean, type text, key text, hash uuid, classification text, data json,
    changed text[])
),
counted as materialized (
  select count(*) filter (where g.kind = 'C') as created, count(*) filter (where g.kind = 'U') as updated, count(*) filter (where g.kind = 'D') as deleted
  from given g
),
ended as (
  insert into pawl.submission (tenant, record_set, scope_id, origin, state, baseline, baseline_number, baseline_live, number, schema_version,
    missing_policy, submitted_by, lines, last_line, created, updated, unchanged, deleted, applied_line, applied_created, applied_updated, applied_deleted,
    submitting_at, ended_at)
  select s.tenant, s.record_set, s.id, :origin::text, 'submitted', s.revision, s.committed, s.live, s.next_number, :schema_version::integer,
    'keep', left(:submitted_by::text, 500), c.created + c.updated + :unchanged::bigint, 0, c.created, c.updated, :unchanged::bigint, c.deleted, 0,
    c.created, c.updated, c.deleted, pawl.now(), pawl.now()
  from pawl.record_scope s, counted c
  where s.tenant = :tenant::text
    and s.id = :scope_id::bigint
  returning id, number, created, deleted
),
records as (
  insert into pawl.record (tenant, scope_id, type, key, id)
  select :tenant::text, :scope_id::bigint, g.type, g.key, g.record_id
  from given g
  where g.is_new
    and g.kind = 'C'
),
versions as (
  insert into pawl.record_version (tenant, record_id, number, submission, schema_version, status, hash, classification, data, changed)
  select :tenant::text, g.record_id, e.number, e.id, :schema_version::integer,
    case g.kind when 'C' then 'CREATED' when 'U' then 'UPDATED' else 'DELETED' end, g.hash, g.classification, g.data, g.changed
  from given g, ended e
)
update pawl.record_scope s
set committed = e.number,
  next_number = e.number + 1,
  revision = s.revision + 1,
  live = s.live + e.created - e.deleted,
  attributes = coalesce(s.attributes || :attributes::jsonb, s.attributes, :attributes::jsonb)
from ended e
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
returning e.id::text as submission, e.number::text as number, s.revision::text as revision, s.scope
