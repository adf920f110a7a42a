-- What belongs to a table or refers to it and cannot follow the name to another table: it would go on with the old generation, or be lost.
-- Locks: none.
-- Plan: the catalogue.
-- No row: nothing.
select distinct 'the view ' || r.ev_class::regclass::text as dependent
from pg_depend d
join pg_rewrite r on r.oid = d.objid
where d.refobjid = :table::regclass
  and d.classid = 'pg_rewrite'::regclass
  and r.ev_class <> d.refobjid
union all
select 'the rule ' || r.rulename
from pg_rewrite r
where r.ev_class = :table::regclass
union all
select 'the foreign key ' || f.conname || ' of ' || f.conrelid::regclass::text
from pg_constraint f
where f.contype = 'f'
  and f.confrelid = :table::regclass
union all
select distinct 'the ' || pg_describe_object(d.classid, d.objid, 0)
from pg_depend d
where d.refclassid = 'pg_class'::regclass
  and d.refobjid = :table::regclass
  and (
    d.classid = 'pg_proc'::regclass
    or (d.classid = 'pg_policy'::regclass and not exists (select from pg_policy p where p.oid = d.objid and p.polrelid = d.refobjid))
  )
union all
select 'the publication ' || p.pubname
from pg_publication_rel r
join pg_publication p on p.oid = r.prpubid
where r.prrelid = :table::regclass
union all
select 'the inheritance of ' || i.inhrelid::regclass::text || ' from ' || i.inhparent::regclass::text
from pg_inherits i
where :table::regclass in (i.inhrelid, i.inhparent)
order by 1
