-- Partitions of the history that hold only days past their keep, detached ones left over from an interrupted removal included.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names, oldest first.
with parent as (
  select p.name, (pawl.now() at time zone 'UTC')::date - :keep_days::integer as until
  from (values ('job_history'), ('job_attempt')) p(name)
)
select p.name as parent, d.name, true as is_attached, d.is_detaching
from parent p
cross join lateral pawl.day_partitions(p.name) d
where d.from_at is not null
  and d.to_at <= p.until::timestamp at time zone 'UTC'
union all
select p.name, c.relname, false, false
from parent p
join pg_class c on c.relname ~ ('^' || p.name || '_[0-9]{8}$') and c.relkind = 'r' and not c.relispartition
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
order by 2
