-- How sets are declared: each in its latest version, or one in all of them, latest first.
-- Locks: none.
-- Plan: record_set_pkey.
-- No row: none was used yet.
select k.name, k.schema_version, k.definition::text as definition
from pawl.record_set k
where k.tenant = :tenant::text
  and (k.name = :name::text
    or :name::text is null
      and not exists (
        select
        from pawl.record_set later
        where later.tenant = k.tenant
          and later.name = k.name
          and later.schema_version > k.schema_version
      ))
order by k.name, k.schema_version desc
