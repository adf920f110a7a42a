-- A scope, as it is committed now.
-- Locks: none.
-- Plan: record_scope_name.
-- No row: nothing was ever submitted for it.
select s.id::text as id, s.scope, s.revision::text as revision, s.committed::text as committed, s.live::text as live, s.attributes::text as attributes
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
