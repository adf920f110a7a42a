-- Writes the versions of one run of staged rows, and how far it came, in one statement. What it writes has a number above the scope's
-- committed one, so no reader sees it. The caller holds its job by the fence; and a chunk that was applied before finds another :after. What
-- failed before is forgotten: only failures without progress between them add up.
-- Locks: the submission row.
-- Plan: submission_row_pkey, twice, since keeping the wide rows between the two inserts costs more than reading them again; inserts into
-- record and record_version; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number any more, or has come to another line.
with its_turn as materialized (
  select u.id
  from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'submitting'
    and u.number = :number::bigint
    and u.applied_line = :after::bigint
),
records as (
  insert into pawl.record (tenant, scope_id, type, key, id)
  select :tenant::text, :scope_id::bigint, r.type, r.key, r.record_id
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = (select t.id from its_turn t)
    and r.line > :after::bigint
    and r.line <= :upto::bigint
    and r.kind = 'C'
    and r.is_new
),
versions as (
  insert into pawl.record_version (tenant, record_id, number, submission, schema_version, status, hash, classification, data, changed)
  select :tenant::text, r.record_id, :number::bigint, :id::bigint, :schema_version::integer,
    case r.kind when 'C' then 'CREATED' when 'U' then 'UPDATED' else 'DELETED' end, r.hash, r.classification, r.data, r.changed
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = (select t.id from its_turn t)
    and r.line > :after::bigint
    and r.line <= :upto::bigint
    and r.kind in ('C', 'U', 'D')
  returning status
),
written as materialized (
  select count(*) filter (where v.status = 'CREATED') as created, count(*) filter (where v.status = 'UPDATED') as updated,
    count(*) filter (where v.status = 'DELETED') as deleted
  from versions v
)
update pawl.submission u
set applied_line = :upto::bigint,
  applied_created = u.applied_created + w.created,
  applied_updated = u.applied_updated + w.updated,
  applied_deleted = u.applied_deleted + w.deleted,
  failures = 0,
  failure_class = null,
  error = null
from written w
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = :after::bigint
returning (u.applied_created + u.applied_updated + u.applied_deleted)::text as applied
