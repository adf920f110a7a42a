-- Writes the versions of one run of staged rows, and how far it came, in one statement. What it writes has a number above the scope's
-- committed one, so no reader sees it. The caller holds its job by the fence; and a chunk that was applied before finds another :after.
-- Locks: the submission row.
-- Plan: submission_row_pkey; inserts into record and record_version; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number any more, or has come to another line.
with chunk as materialized (
  select r.record_id, r.kind, r.is_new, r.type, r.key, r.hash, r.classification, r.data, r.changed
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line > :after::bigint
    and r.line <= :upto::bigint
    and r.kind in ('C', 'U', 'D')
    and exists (
      select
      from pawl.submission u
      where u.tenant = :tenant::text
        and u.id = :id::bigint
        and u.state = 'submitting'
        and u.number = :number::bigint
        and u.applied_line = :after::bigint
    )
),
records as (
  insert into pawl.record (tenant, scope_id, type, key, id)
  select :tenant::text, :scope_id::bigint, c.type, c.key, c.record_id
  from chunk c
  where c.is_new
    and c.kind = 'C'
),
versions as (
  insert into pawl.record_version (tenant, record_id, number, submission, schema_version, status, hash, classification, data, changed)
  select :tenant::text, c.record_id, :number::bigint, :id::bigint, :schema_version::integer,
    case c.kind when 'C' then 'CREATED' when 'U' then 'UPDATED' else 'DELETED' end, c.hash, c.classification, c.data, c.changed
  from chunk c
  returning status
)
update pawl.submission u
set applied_line = :upto::bigint,
  applied_created = u.applied_created + (select count(*) from versions v where v.status = 'CREATED'),
  applied_updated = u.applied_updated + (select count(*) from versions v where v.status = 'UPDATED'),
  applied_deleted = u.applied_deleted + (select count(*) from versions v where v.status = 'DELETED')
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = :after::bigint
returning (u.applied_created + u.applied_updated + u.applied_deleted)::text as applied
