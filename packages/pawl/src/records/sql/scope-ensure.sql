-- Makes the scope's row if it is not there, and sets its attributes if they were not set yet.
-- Locks: the scope row, and only when it is made or its attributes are set.
-- Plan: an insert that the unique name arbitrates.
-- No row: it is there and nothing was to be set.
insert into pawl.record_scope as s (tenant, record_set, scope, attributes)
values (:tenant::text, :record_set::text, :scope::text, :attributes::jsonb)
on conflict (tenant, record_set, scope)
do update set attributes = excluded.attributes
where s.attributes is null
  and excluded.attributes is not null
returning s.id::text as id
