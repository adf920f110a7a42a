-- Makes the scope's row if it is not there, and sets those of its attributes that were not set yet.
-- Locks: the scope row.
-- Plan: an insert that the unique name arbitrates.
-- No row: somebody else made it, and none is given or one of them was set to something else.
insert into pawl.record_scope as s (tenant, record_set, scope, attributes)
values (:tenant::text, :record_set::text, :scope::text, :attributes::jsonb)
on conflict (tenant, record_set, scope)
do update set attributes = coalesce(s.attributes, '{}') || excluded.attributes
where excluded.attributes is not null
  -- Whichever is laid over the other, the same comes out: no attribute has two values.
  and coalesce(s.attributes, '{}') || excluded.attributes = excluded.attributes || coalesce(s.attributes, '{}')
returning s.id::text as id
