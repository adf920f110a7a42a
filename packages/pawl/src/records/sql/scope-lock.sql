-- Holds a scope for a transaction that takes its slot, commits a number, or ends a submission: these follow one another. Readers and the
-- chunks of a running submission do not wait for it.
-- Locks: the scope row, FOR NO KEY UPDATE.
-- Plan: record_scope_pkey.
-- No row: there is no such scope.
select s.id::text as id, s.scope, s.revision::text as revision, s.committed::text as committed, s.live::text as live,
  s.next_number::text as next_number, s.attributes::text as attributes
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
for no key update
