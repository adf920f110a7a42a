-- name: scope-ensure
-- Makes the scope's row if it is not there.
-- Locks: the scope row, if it is made.
-- Plan: an insert that the unique name arbitrates.
-- No row: another transaction made it.
insert into pawl.record_scope as s (tenant, record_set, scope)
values (:tenant::text, :record_set::text, :scope::text)
on conflict (tenant, record_set, scope) do nothing
returning s.id::text as id

-- name: scope-lock
-- Holds a scope for a transaction that takes its slot, commits a number, or ends a submission: these follow one another. Readers and the
-- chunks of a running submission do not wait for it.
-- Locks: the scope row, FOR NO KEY UPDATE.
-- Plan: record_scope_pkey.
-- No row: there is no such scope.
select s.id::text as id, s.scope, s.revision::text as revision, s.committed::text as committed, s.attributes::text as attributes
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
for no key update

-- name: scope-read
-- A scope, as it is committed now.
-- Locks: none.
-- Plan: record_scope_name.
-- No row: nothing was ever submitted for it.
select s.id::text as id, s.scope, s.revision::text as revision, s.committed::text as committed, s.live::text as live, s.attributes::text as attributes
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
