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
