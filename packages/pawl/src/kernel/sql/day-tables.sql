-- Tables that are partitioned by days.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names.
select c.relname as name
from pg_partitioned_table t
join pg_class c on c.oid = t.partrelid
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
where to_regclass(format('pawl.%I', c.relname || '_last')) is not null
order by c.relname
