-- Views over a table and foreign keys to it: what would follow it when it is renamed.
-- Locks: none.
-- Plan: the catalogue.
-- No row: nothing would.
select distinct 'the view ' || r.ev_class::regclass::text as dependent
from pg_depend d
join pg_rewrite r on r.oid = d.objid
where d.refobjid = :table::regclass
  and d.classid = 'pg_rewrite'::regclass
  and r.ev_class <> d.refobjid
union all
select 'the foreign key ' || f.conname || ' of ' || f.conrelid::regclass::text
from pg_constraint f
where f.contype = 'f'
  and f.confrelid = :table::regclass
