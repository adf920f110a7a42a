-- Counts a scope anew: live records, versions that are not committed, and records without any version.
-- Locks: none.
-- Plan: record_scope_name, record_pkey, record_version_pkey.
-- No row: there is no such scope.
select s.live::text as live, s.committed::text as committed, c.live::text as counted_live, c.uncommitted::text as uncommitted, c.empty::text as empty,
  (select u.number::text from pawl.submission u where u.tenant = s.tenant and u.scope_id = s.id and u.state = 'submitting') as submitting
from pawl.record_scope s
cross join lateral (
  select count(*) filter (where v.status <> 'DELETED') as live, coalesce(sum(n.uncommitted), 0) as uncommitted, count(*) filter (where n.versions = 0) as empty
  from pawl.record r
  left join lateral (
    select w.status
    from pawl.record_version w
    where w.tenant = r.tenant
      and w.record_id = r.id
      and w.number <= s.committed
    order by w.number desc
    limit 1
  ) v on true
  cross join lateral (
    select count(*) as versions, count(*) filter (where w.number > s.committed) as uncommitted
    from pawl.record_version w
    where w.tenant = r.tenant
      and w.record_id = r.id
  ) n
  where r.tenant = s.tenant
    and r.scope_id = s.id
) c
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
