-- name: set-keep
-- Keeps how a set is declared. The latest to say it for a version of its schema is right.
-- Locks: its row, and only if it says something new.
-- Plan: record_set_pkey.
-- No row is returned.
insert into pawl.record_set as k (tenant, name, schema_version, definition)
select :tenant::text, :name::text, :schema_version::integer, :definition::jsonb
where not exists (
  select
  from pawl.record_set s
  where s.tenant = :tenant::text
    and s.name = :name::text
    and s.schema_version = :schema_version::integer
    and s.definition = :definition::jsonb
)
on conflict (tenant, name, schema_version)
do update set definition = excluded.definition, kept_at = pawl.now()

-- name: set-list
-- How sets are declared, each in its latest version.
-- Locks: none.
-- Plan: all sets of the tenant, sorted; there are few.
-- No row: none was used yet.
select distinct on (k.name) k.name, k.schema_version, k.definition
from pawl.record_set k
where k.tenant = :tenant::text
order by k.name, k.schema_version desc
