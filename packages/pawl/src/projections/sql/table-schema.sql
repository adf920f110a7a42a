-- The schema in which the user's search path finds a table: asked on a session with that path, so every operator here has an exact match.
-- Locks: none.
-- Plan: the catalogue.
-- No row: it finds none.
select n.nspname::text as schema
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = pg_catalog.to_regclass(:table::text)::oid
