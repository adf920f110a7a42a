-- Takes the data out of every version of one record and writes down that it did. Numbers, states and submissions stay. The caller holds the
-- scope's lock and has seen that its slot is free. The scope's new revision supersedes what was compared with the old data.
-- Locks: the version rows of the record, the scope row.
-- Plan: record_pkey, record_version_pkey, record_scope_pkey.
-- No row: there is no such record, or it was erased before.
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
written as (
  insert into pawl.record_erasure (tenant, scope_id, record_id, versions, reason, erased_by)
  select :tenant::text, :scope_id::bigint, e.record_id, count(*), left(:reason::text, 2000), left(:erased_by::text, 500)
  from erased e
  group by e.record_id
  returning versions
)
update pawl.record_scope s
set revision = s.revision + 1
from written w
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
returning w.versions
