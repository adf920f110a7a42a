-- Takes back what a submission wrote for one run of its staged rows, last first, and how far it had come, in one statement.
-- Locks: the submission row, and rows that nobody can see.
-- Plan: submission_row_pkey, record_version_pkey, record_pkey; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number, or has come to another line.
with chunk as materialized (
  select r.record_id, r.kind, r.is_new, r.type, r.key
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line > :downto::bigint
    and r.line <= :from::bigint
    and r.kind in ('C', 'U', 'D')
),
versions as (
  delete from pawl.record_version v
  using chunk c
  where v.tenant = :tenant::text
    and v.record_id = c.record_id
    and v.number = :number::bigint
    and v.submission = :id::bigint
  returning v.status
),
records as (
  delete from pawl.record r
  using chunk c
  where c.is_new
    and c.kind = 'C'
    and r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = c.type
    and r.key = c.key
    and r.id = c.record_id
)
update pawl.submission u
set applied_line = :downto::bigint,
  applied_created = u.applied_created - (select count(*) from versions v where v.status = 'CREATED'),
  applied_updated = u.applied_updated - (select count(*) from versions v where v.status = 'UPDATED'),
  applied_deleted = u.applied_deleted - (select count(*) from versions v where v.status = 'DELETED')
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = :from::bigint
returning u.applied_line::text as applied_line
