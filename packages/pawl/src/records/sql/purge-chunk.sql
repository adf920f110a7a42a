-- Takes back what a submission wrote for one run of its staged rows, last first, and how far it had come, in one statement.
-- Locks: the submission row, and rows that nobody can see.
-- Plan: submission_row_pkey, record_version_pkey, record_pkey; its own submission by the slot or the primary key. Each version and each record is
-- looked up by its own key and then deleted by its place: nothing is known yet about rows that were just written, and a join of them would be
-- planned as a loop over all of one for each of the other.
-- No row: it is not submitting under this number, or has come to another line. Then the caller rolls back what was deleted.
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
  where v.ctid = any (
    array(
      select w.ctid
      from chunk c
      cross join lateral (
        select w.ctid
        from pawl.record_version w
        where w.tenant = :tenant::text
          and w.record_id = c.record_id
          and w.number = :number::bigint
          and w.submission = :id::bigint
        offset 0
      ) w
    )
  )
  returning v.status
),
records as (
  delete from pawl.record r
  where r.ctid = any (
    array(
      select o.ctid
      from chunk c
      cross join lateral (
        select p.ctid
        from pawl.record p
        where p.tenant = :tenant::text
          and p.scope_id = :scope_id::bigint
          and p.type = c.type
          and p.key = c.key
          and p.id = c.record_id
        offset 0
      ) o
      where c.is_new
        and c.kind = 'C'
    )
  )
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
