-- Partitions of events that an earlier run of retention detached and did not come to drop.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names.
select c.relname as name
from pg_class c
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
where c.relname ~ '^event_[0-9]{8}$'
  and c.relkind = 'r'
  and not c.relispartition
order by c.relname
