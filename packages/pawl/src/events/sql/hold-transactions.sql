-- Open and prepared transactions that delay delivery: those that appended (their own events wait for their commit), and whoever holds the
-- sequencer's row (everyone's wait). And those that have used the table of events for more than a second: a removal waits for their end.
-- Locks: none.
-- Plan: pg_locks, pg_stat_activity and pg_prepared_xacts.
-- Rows: one per transaction. What this role may not see of others is null.
with held as (
  select l.pid, l.virtualtransaction, bool_or(l.relation = 'pawl.sequencer'::regclass) as is_sequencer,
    bool_and(l.mode = 'AccessShareLock') as is_reader
  from pg_locks l
  where l.locktype = 'relation'
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and (
      (l.relation in ('pawl.event'::regclass, 'pawl.sequencer'::regclass) and l.mode in ('RowExclusiveLock', 'RowShareLock'))
      or (l.relation = 'pawl.event'::regclass and l.mode = 'AccessShareLock')
    )
    and l.granted
    and l.pid is distinct from pg_backend_pid()
  group by l.pid, l.virtualtransaction
)
select h.is_sequencer, h.is_reader, h.pid, p.gid, coalesce(a.xact_start, p.prepared) as since, a.state, a.application_name as application,
  left(a.query, 200) as query
from held h
left join pg_stat_activity a on a.pid = h.pid
left join pg_prepared_xacts p on h.pid is null and h.virtualtransaction = '-1/' || p.transaction::text
where not h.is_reader
  or coalesce(a.xact_start, p.prepared, '-infinity') < clock_timestamp() - interval '1 second'
order by coalesce(a.xact_start, p.prepared)
