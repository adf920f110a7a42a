-- Ends the sessions of handlers and claims that closed incarnations left inside a transaction. A process that is paused cannot end them, and their row
-- locks would keep whoever takes its jobs over waiting for as long. A transaction that began after the close is another incarnation's.
-- Locks: none.
-- Plan: worker_process_pkey, then the list of sessions. Found first and ended then: a condition would be tried on every session of the server.
-- Rows: the sessions that were ended.
with found as materialized (
  select a.pid
  from unnest(:workers::integer[]) g(id)
  join pawl.worker w on w.tenant = '' and w.id = g.id and w.closed_at is not null
  join pawl.worker_process p on p.tenant = '' and p.id = w.id and p.sessions <> ''
  join pg_catalog.pg_stat_activity a
    on right(a.application_name, length(p.sessions)) = p.sessions
    and a.datname = current_database()
    and a.usename = current_user
    and a.xact_start < w.closed_at
)
select f.pid, pg_catalog.pg_terminate_backend(f.pid) as is_ended
from found f
