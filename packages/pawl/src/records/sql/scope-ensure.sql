-- Makes the scope's row if it is not there.
-- Locks: the scope row, if it is made.
-- Plan: an insert that the unique name arbitrates.
-- No row: somebody else made it.
insert into pawl.record_scope as s (tenant, record_set, scope)
values (:tenant::text, :record_set::text, :scope::text)
on conflict (tenant, record_set, scope) do nothing
returning s.id::text as id
