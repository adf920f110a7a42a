-- Partitions of the history that hold only days past their keep, detached ones left over from an interrupted removal included.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names, oldest first.
select p.parent, c.relname as name, c.relispartition as is_attached
from (values ('job_history'), ('job_attempt')) p(parent)
join pg_class c on c.relname ~ ('^' || p.parent || '_[0-9]{8}$')
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
where to_date(right(c.relname, 8), 'YYYYMMDD') < (pawl.now() at time zone 'UTC')::date - :keep_days::integer
order by c.relname
