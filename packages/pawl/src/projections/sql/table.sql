-- name: missing-columns
-- Declared tables and columns that are not there.
-- Locks: none.
-- Plan: the catalogue.
-- No row: all are there. A row without a column: its whole table is missing.
select d.name, case when to_regclass(d.quoted) is not null then d.column_name end as column_name
from unnest(:names::text[], :quoted::text[], :columns::text[]) d(name, quoted, column_name)
left join pg_attribute a on a.attrelid = to_regclass(d.quoted)
  and a.attname = d.column_name
  and a.attnum > 0
  and not a.attisdropped
where a.attname is null
order by d.name, column_name

-- name: table-belongings
-- What belongs to a table and `create table like` does not copy, as the statements that give it to another table: owner, options, privileges, row
-- security, policies, triggers and foreign keys. Triggers and foreign keys are moved, not copied: writes of the old generation go on, and must fire and check nothing. Both tables are
-- named as they are now; the statements name the new one :name and the old one :old, as they are when the statements run.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: the statements, in the order in which they run. `is_access` is what a generation that is not live needs too.
with live as materialized (
  select c.oid, c.relowner, c.relacl, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident
  from pg_class c
  where c.oid = :live::regclass
),
other as materialized (
  select c.oid, c.relowner, c.relacl, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident
  from pg_class c
  where c.oid = :other::regclass
),
role as materialized (
  select r.oid, quote_ident(r.rolname) as name
  from pg_roles r
  union all
  select 0, 'public'
),
needed as (
  select 1 as step, true as is_access, format('alter table %s owner to %s', :name::text, r.name) as sql
  from live l
  join other o on o.relowner <> l.relowner
  join role r on r.oid = l.relowner
  union all
  select 2, true, format('alter table %s set (%s)', :name::text, array_to_string(l.reloptions, ', '))
  from live l
  join other o on o.reloptions is distinct from l.reloptions
  where l.reloptions is not null
  union all
  select distinct 3, true, format('revoke all on table %s from %s', :name::text, r.name)
  from other o
  cross join lateral aclexplode(o.relacl) a
  join role r on r.oid = a.grantee
  where a.grantee <> o.relowner
  union all
  select 4, true, format('grant %s on table %s to %s%s', a.privilege_type, :name::text, r.name,
    case when a.is_grantable and a.grantee <> l.relowner then ' with grant option' else '' end)
  from live l
  cross join lateral aclexplode(l.relacl) a
  join role r on r.oid = a.grantee
  union all
  select 4, true, format('grant %s (%I) on table %s to %s%s', a.privilege_type, t.attname, :name::text, r.name,
    case when a.is_grantable then ' with grant option' else '' end)
  from live l
  join pg_attribute t on t.attrelid = l.oid and t.attnum > 0 and not t.attisdropped
  cross join lateral aclexplode(t.attacl) a
  join role r on r.oid = a.grantee
  union all
  select 5, false, format('alter table %s %s row level security', :name::text, case when l.relrowsecurity then 'enable' else 'disable' end)
  from live l
  join other o on o.relrowsecurity <> l.relrowsecurity
  union all
  select 5, false, format('alter table %s %s row level security', :name::text, case when l.relforcerowsecurity then 'force' else 'no force' end)
  from live l
  join other o on o.relforcerowsecurity <> l.relforcerowsecurity
  union all
  select 6, false, format('drop policy %I on %s', p.polname, :name::text)
  from other o
  join pg_policy p on p.polrelid = o.oid
  union all
  select 7, false, format('create policy %I on %s as %s for %s to %s%s%s', p.polname, :name::text,
    case when p.polpermissive then 'permissive' else 'restrictive' end,
    case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete' else 'all' end,
    (select string_agg(r.name, ', ' order by array_position(p.polroles, r.oid)) from role r where r.oid = any (p.polroles)),
    ' using (' || pg_get_expr(p.polqual, p.polrelid) || ')', ' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')')
  from live l
  join pg_policy p on p.polrelid = l.oid
  union all
  select 8, false, format('drop trigger %I on %s', t.tgname, n.name)
  from (
    select o.oid, :name::text as name
    from other o
    union all
    select l.oid, :old::text
    from live l
  ) n
  join pg_trigger t on t.tgrelid = n.oid and not t.tgisinternal
  union all
  select 9, false, pg_get_triggerdef(t.oid)
  from live l
  join pg_trigger t on t.tgrelid = l.oid and not t.tgisinternal
  union all
  select 10, false, format('alter table %s %s trigger %I', :name::text,
    case t.tgenabled when 'D' then 'disable' when 'R' then 'enable replica' else 'enable always' end, t.tgname)
  from live l
  join pg_trigger t on t.tgrelid = l.oid and not t.tgisinternal and t.tgenabled <> 'O'
  union all
  select 11, false, format('alter table %s drop constraint %I', :old::text, f.conname)
  from live l
  join pg_constraint f on f.conrelid = l.oid and f.contype = 'f'
  union all
  select 12, false, format('alter table %s add constraint %I %s', :name::text, f.conname, pg_get_constraintdef(f.oid))
  from live l
  cross join other o
  join pg_constraint f on f.conrelid = l.oid and f.contype = 'f'
  where not exists (select from pg_constraint k where k.conrelid = o.oid and k.contype = 'f' and k.conname = f.conname)
  union all
  select 13, false, format('alter table %s replica identity %s', :name::text,
    case l.relreplident when 'f' then 'full' when 'n' then 'nothing' else 'default' end)
  from live l
  join other o on o.relreplident <> l.relreplident
  where l.relreplident <> 'i'
)
select n.is_access, n.sql
from needed n
order by n.step, n.sql

-- name: table-dependents
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

-- name: table-holders
-- Sessions that keep a lock on one of these tables, the longest transaction first.
-- Locks: none.
-- Plan: the catalogue.
-- No row: none is left.
select a.pid, a.application_name as name, a.state, extract(epoch from clock_timestamp() - a.xact_start)::integer as seconds
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation'
  and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.relation = any (select to_regclass(t.name) from unnest(:tables::text[]) as t(name))
  and a.pid <> pg_backend_pid()
group by a.pid, a.application_name, a.state, a.xact_start
order by a.xact_start
limit 5

-- name: table-schema
-- The schema in which the user's search path finds a table: asked on a session with that path, so every operator here has an exact match.
-- Locks: none.
-- Plan: the catalogue.
-- No row: it finds none.
select n.nspname::text as schema
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = pg_catalog.to_regclass(:table::text)::oid
