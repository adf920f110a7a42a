-- Sessions that keep a lock on one of these tables, the longest transaction first.
-- Locks: none.
-- Plan: the catalogue.
-- No row: nobody does any more.
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
