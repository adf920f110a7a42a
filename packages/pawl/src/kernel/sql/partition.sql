-- name: day-tables
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

-- name: last-partition-used
-- Says that rows went to the open-ended last partition of a table, because the days that were prepared are used up.
-- Locks: the alert's row.
-- Plan: an insert or update inside the function.
-- One row, without meaning.
select pawl.raise_alert('', 'partition.last', :name::text, format('pawl.%s has no partition left for new days, so rows go to its last '
    'partition. Nothing is lost, but retention cannot remove them. Maintenance adds partitions when no transaction locks the table.', :name::text))::text as raised

-- name: is-last-day-used
-- Whether the open-ended last partition of a table has rows.
-- Locks: none.
-- Plan: a call.
-- One row: the answer.
select pawl.is_last_day_used(:name::text) as is_used

-- name: extend-day-partitions
-- Adds the partitions of the next days to a table.
-- Locks: the table, briefly, with the lock timeout of the session.
-- Plan: a call.
-- One row: whether there was something to do.
select pawl.extend_day_partitions(:name::text) as did
