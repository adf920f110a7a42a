-- Takes the data out of every version of one record, takes the record out of everything that is staged for its scope, with what errors quote
-- of it, and writes down that it did. Numbers, states and submissions stay. The caller holds the scope's lock and has seen that its slot is free. The scope's new revision
-- supersedes what was compared with the old data and what is left of those uploads, which cannot be rebased: erased-since.sql. What was
-- submitted may be staged until its tending clears it, so the submissions that wrote a version are searched as well.
-- Locks: the version rows of the record, its staged rows and their errors, the scope row.
-- Plan: record_pkey, record_version_pkey, submission_open_of_scope, submission_row_pkey, submission_error_pkey, record_scope_pkey.
-- No row: there is no such record, staged or not, or it was erased before; nothing is changed.
with found as materialized (
  select r.id
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = :type::text
    and r.key = :key::text
),
erased as (
  update pawl.record_version v
  set data = null,
    hash = null,
    classification = null,
    changed = null,
    is_erased = true
  from found f
  where v.tenant = :tenant::text
    and v.record_id = f.id
    and not v.is_erased
    and v.status <> 'DELETED'
  returning v.record_id
),
staged as (
  delete from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = any (
      array(
        select u.id
        from pawl.submission u
        where u.tenant = :tenant::text
          and u.scope_id = :scope_id::bigint
          and u.state <> 'submitted'
        union
        select w.submission
        from found f
        join pawl.record_version w on w.tenant = :tenant::text and w.record_id = f.id
      )
    )
    and r.type = :type::text
    and r.key = :key::text
  returning r.submission, r.line
),
quoted as (
  delete from pawl.submission_error e
  using staged t
  where e.tenant = :tenant::text
    and e.submission = t.submission
    and e.line = t.line
),
counted as materialized (
  select (select count(*) from erased e) as versions, (select count(*) from staged t) as staged
),
moved as (
  update pawl.record_scope s
  set revision = s.revision + 1
  from counted c
  where s.tenant = :tenant::text
    and s.id = :scope_id::bigint
    and c.versions + c.staged > 0
  returning s.revision
)
insert into pawl.record_erasure (tenant, scope_id, record_id, revision, type, key, versions, reason, erased_by)
select :tenant::text, :scope_id::bigint, (select f.id from found f), m.revision, :type::text, :key::text, c.versions, left(:reason::text, 2000), left(:erased_by::text, 500)
from moved m, counted c
returning versions
