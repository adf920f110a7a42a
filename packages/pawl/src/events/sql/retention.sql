-- name: retention
-- Partitions that are old enough for removal, oldest first, and what holds each: an open transaction that wrote into it, an event without a
-- position, a cursor that has not passed it, or a parked key.
-- Locks: none.
-- Plan: the catalogue and pg_locks; log_page in full, because it has few rows; event_xid. Events whose transaction the sequencer has not seen
-- may be from before a restore and have their position: the pages of their time are read once for all of them.
-- Rows: one per partition. No row: nothing is old enough.
with place as materialized (
  select s.snapshot, pg_snapshot_xmax(s.snapshot) as xmax, array(select pg_snapshot_xip(s.snapshot)) as xip
  from pawl.log_head s
  where s.tenant = ''
),
old as materialized (
  select d.name, coalesce(d.from_at, '-infinity') as from_at, d.to_at, d.is_detaching, d.from_at is null as is_first
  from pawl.day_partitions('event') d
  where (d.from_at is not null or exists (select from pawl.event_first))
    and d.to_at <= ((pawl.now() at time zone 'UTC')::date - :keep_days::integer)::timestamp at time zone 'UTC'
),
unseen as materialized (
  select e.xid, e.seq, e.created_at
  from place l
  cross join pawl.event e
  where e.created_at < (select max(o.to_at) from old o)
    and (e.xid >= l.xmax or e.xid = any (l.xip))
),
unsequenced as materialized (
  select n.created_at
  from unseen n
  where not exists (
    select
    from (
      select u.xid, u.seq
      from pawl.log_page p
      cross join lateral unnest(p.xids, p.seqs) u(xid, seq)
      where p.tenant = ''
        and exists (select from unseen)
        and p.from_at <= (select max(x.created_at) from unseen x)
        and p.to_at >= (select min(x.created_at) from unseen x)
      offset 0
    ) k
    where k.xid = n.xid
      and k.seq = n.seq
  )
),
reached as materialized (
  select o.name, max(p.last_position) as until
  from old o
  join pawl.log_page p on p.tenant = '' and p.from_at < o.to_at and p.to_at >= o.from_at
  group by o.name
),
needed as materialized (
  select f.what, f.position, concat(f.key || ' of ', format('%s generation %s shard %s', f.name, f.generation, f.shard)) as name
  from pawl.cursor_floor() f
)
select o.name, o.is_first, o.is_detaching, coalesce(r.until, 0)::text as until,
  pg_total_relation_size(format('pawl.%I', o.name))::text as bytes,
  (
    select coalesce(l.pid::text, l.virtualtransaction)
    from pg_locks l
    where l.locktype = 'relation'
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = to_regclass(format('pawl.%I', o.name))
      and l.mode = 'RowExclusiveLock'
      and l.granted
    limit 1
  ) as writer,
  exists (select from unsequenced n where n.created_at >= o.from_at and n.created_at < o.to_at) as is_unsequenced,
  (select n.name from needed n where n.what = 'cursor' and n.position < r.until order by n.position limit 1) as cursor,
  (select n.name from needed n where n.what = 'parked key' and n.position < r.until order by n.position limit 1) as parked
from old o
left join reached r on r.name = o.name
order by o.from_at

-- name: hold-cursors
-- Cursors that lag, and parked keys: no event after one of them can be removed.
-- Locks: none.
-- Plan: the few rows of cursors and parked keys.
-- Rows: one per cursor and parked key, the one that holds the most events first.
select f.what, f.tenant, f.name, f.generation, f.shard, f.key, f.state, f.position, (s.position - f.position)::text as behind, f.since
from pawl.cursor_floor() f
cross join pawl.log_head s
where f.position < s.position
  and s.tenant = ''
order by f.position

-- name: hold-slots
-- Logical replication slots of this database, such as Debezium's, and the WAL that each retains.
-- Locks: none.
-- Plan: pg_replication_slots.
-- Rows: one per slot, the one that retains the most WAL first.
select r.slot_name::text as name, r.active as is_active, r.wal_status as state,
  pg_wal_lsn_diff(pg_current_wal_lsn(), r.restart_lsn)::bigint::text as bytes
from pg_replication_slots r
where r.database = current_database()
order by pg_wal_lsn_diff(pg_current_wal_lsn(), r.restart_lsn) desc nulls last

-- name: hold-transactions
-- Open and prepared transactions that delay delivery: those that appended (their own events wait for their commit), and one that holds the
-- sequencer's row (all events wait). And those that have used pawl.event for more than a second: a removal waits for their end.
-- Locks: none.
-- Plan: pg_locks, pg_stat_activity and pg_prepared_xacts.
-- Rows: one per transaction. Columns of other roles' sessions that this role may not read are null.
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

-- name: retention-held
-- Raises the alert about events that cannot be removed.
-- Locks: the alert's row.
-- Plan: an insert or update inside the function.
-- One row, without meaning.
select pawl.raise_alert('', 'event.retention', 'event', :held::text)::text as raised

-- name: drop-detached
-- Drops a detached day of events, unless an event in it has no position yet.
-- Locks: the table that is dropped.
-- Plan: a call.
-- One row: whether it was dropped.
select pawl.drop_detached_events(:name::text) as is_all
