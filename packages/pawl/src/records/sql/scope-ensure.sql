-- Makes the scope's row if it is not there, and sets its attributes if they were not set yet.
-- Locks: the scope row.
-- Plan: an insert that the unique name arbitrates.
-- No row: somebody else made it or set them first.
insert into pawl.record_scope as s (tenant, record_set, scope, attributes)
values (:tenant::text, :record_set::text, :scope::text, :attributes::jsonb)
on conflict (tenant, record_set, scope)
do update set attributes = excluded.attributes
where s.attributes is null
  and excluded.attributes is not null
returning s.id::text as id
