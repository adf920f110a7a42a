-- Partitions whose days are past their keep, oldest first, and what holds each back: an open transaction that wrote into it, an event without
-- a position, a cursor that has not come past it, or a parked key.
-- Locks: none.
-- Plan: the catalogue and pg_locks; log_page in full, for there are few pages; event_xid. Events whose transaction the sequencer has not seen
-- may be from before a restore and have their position; if there are any, the pages of their time are read once for all of them.
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
slowest as materialized (
  select c.position, format('%s generation %s shard %s', c.name, c.generation, c.shard) as name
  from pawl.cursor_at c
  where c.state <> 'stale'
  order by c.position
  limit 1
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
  (select c.name from slowest c where c.position < r.until) as cursor,
  (
    select format('%s of %s generation %s shard %s', k.key, k.name, k.generation, k.shard)
    from pawl.parked_event k
    where k.position <= r.until
    order by k.position
    limit 1
  ) as parked
from old o
left join reached r on r.name = o.name
order by o.from_at
