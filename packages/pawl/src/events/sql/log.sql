-- name: sequence
-- One tick: gives a position to each event that became visible since the last one. :limit null: to all of them, however long that takes.
-- Locks: the sequencer's row, SKIP LOCKED, and only if there is something to do.
-- Plan: a call. The function disables sequential scans, so it uses event_xid.
-- One row: the outcome.
select t.outcome, t.sequenced, t.head, t.generation, t.events
from pawl.sequence_events(:limit::integer) t

-- name: read-log
-- Reads the log after a position: how far it scanned, and the events that match, in order of position.
-- Locks: none.
-- Plan: log_page_pkey, then event_xid once per event, in the partitions of that page's days. A page has at most 200 positions, so the page
-- that holds :after + :scan ends before 200 more. Without the offset the planner would flatten the subquery and open every day.
-- One row: the head, the number of positions that pages cover, and one string per column of the events: words between spaces, or a JSON array. That
-- costs a reader less than half of rows. A position without its event has the id '-'. After 2 MB, as stored, it returns no further event (is_cut): at the
-- best compression a string still fits into the limits of the server and of Node. Events of :passed_xids are left out before pawl.event is read, where
-- they are of this era and after the head that each of these transactions saw: a restore may bring other events with the same ids.
with place as materialized (
  select s.position as head, s.generation, least(s.position, :after::bigint + :scan::bigint) as until
  from pawl.log_head s
  where s.tenant = ''
),
page as materialized (
  select p.first_position, p.last_position, p.from_at, p.to_at, p.generation, p.channels, p.xids, p.seqs, l.until,
    array(
      select o.xid
      from unnest(:passed_xids::xid8[], :passed_heads::bigint[]) o(xid, head)
      where o.head < p.first_position
        and :passed_era::text = p.generation || '/' || extract(epoch from pg_postmaster_start_time())
    ) as passed_xids
  from place l
  cross join pawl.log_page p
  where p.tenant = ''
    and p.last_position > :after::bigint
    and p.last_position < l.until + 200
    and p.first_position <= l.until
)
select l.head, l.generation as log_generation, l.until,
  (
    select coalesce(sum(least(p.last_position, p.until) - greatest(p.first_position, :after::bigint + 1) + 1), 0)
    from page p
  ) as covered,
  coalesce(e.bytes, 0) >= 2000000 as is_cut,
  e.positions, e.generations, e.xids, e.ids, e.times, e.tenants, e.channels, e.aggregate_types, e.keys, e.types, e.payloads, e.headers
from place l
cross join lateral (
  select max(m.bytes) as bytes,
    string_agg(m.position::text, ' ') as positions,
    string_agg(m.generation::text, ' ') as generations,
    string_agg(m.xid, ' ') as xids,
    string_agg(coalesce(m.id::text, '-'), ' ') as ids,
    string_agg(coalesce(m.at_s, 0)::text, ' ') as times,
    json_agg(m.tenant)::text as tenants,
    json_agg(m.channel)::text as channels,
    json_agg(m.aggregatetype)::text as aggregate_types,
    json_agg(m.aggregateid)::text as keys,
    json_agg(m.type)::text as types,
    '[' || string_agg(coalesce(m.payload::text, 'null'), ',') || ']' as payloads,
    '[' || string_agg(coalesce(m.headers::text, 'null'), ',') || ']' as headers
  from (
    select p.first_position + u.n - 1 as position, p.generation, u.xid::text as xid, e.id, date_part('epoch', e.created_at) as at_s, e.tenant, e.channel,
      e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers,
      sum(coalesce(pg_column_size(e.payload), 0) + coalesce(pg_column_size(e.headers), 0)) over (order by p.first_position + u.n - 1) as bytes
    from page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    left join lateral (
      select v.id, v.created_at, v.tenant, v.channel, v.aggregatetype, v.aggregateid, v.type, v.payload, v.headers
      from pawl.event v
      where v.xid = u.xid
        and v.seq = u.seq
        and v.created_at >= p.from_at
        and v.created_at <= p.to_at
      offset 0
    ) e on true
    where p.first_position + u.n - 1 > :after::bigint
      and p.first_position + u.n - 1 <= p.until
      and u.xid <> all (p.passed_xids)
      and (:channel::text is null or p.channels @> array[:channel::text] collate "C")
      and (
        e.id is null
        or (
          (:channel::text is null or e.channel = :channel::text)
          and (:tenant::text is null or e.tenant = :tenant::text)
          and (
            :bucket_from::integer is null
            or pawl.event_bucket(e.tenant, e.aggregateid) between :bucket_from::integer and :bucket_to::integer
          )
        )
      )
    order by 1
    limit :limit::integer
  ) m
  where m.bytes - coalesce(pg_column_size(m.payload), 0) - coalesce(pg_column_size(m.headers), 0) < 2000000
) e

-- name: lag
-- The position of the log, and the events that wait for one, counted up to 10,000. Events from before a restore have their position, although their
-- transaction ids may be ahead of this cluster's.
-- Locks: none.
-- Plan: sequencer_pkey, event_xid.
-- One row.
with place as materialized (
  select s.position, s.generation, s.ticked_at, s.removed_until, s.rebased_seq, pg_snapshot_xmax(s.snapshot) as xmax,
    array(select pg_snapshot_xip(s.snapshot)) as xip
  from pawl.log_head s
  where s.tenant = ''
),
waiting as materialized (
  select e.created_at
  from place l
  cross join lateral (
    select v.created_at
    from pawl.event v
    where v.xid >= l.xmax
      and v.seq > l.rebased_seq
    union all
    select v.created_at
    from pawl.event v
    where v.xid = any (l.xip)
      and v.seq > l.rebased_seq
  ) e
  limit 10000
)
select l.position::text as head, l.generation, l.removed_until::text as removed_until, l.ticked_at,
  (select count(*)::integer from waiting) as waiting,
  (select (date_part('epoch', pawl.now() - min(w.created_at)) * 1000)::bigint::text from waiting w) as oldest_ms
from place l

-- name: audit-pages
-- Checks the log: gaps and overlaps between pages, positions without an event, events with two positions, and events that should have a position and
-- have none.
-- Locks: none.
-- Plan: scans every page and every event once, hash-joined, in one snapshot.
-- One row: the counts.
with place as materialized (
  select s.position, s.snapshot, s.removed_until
  from pawl.log_head s
  where s.tenant = ''
),
page as materialized (
  select p.first_position, p.last_position, p.xids, p.seqs, lag(p.last_position) over (order by p.last_position) as before
  from pawl.log_page p
  where p.tenant = ''
),
named as materialized (
  select p.first_position + u.n - 1 as position, u.xid, u.seq
  from page p
  cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
),
joined as materialized (
  select n.position, e.xid as event_xid, e.seq as event_seq, e.position_expected
  from named n
  full join (
    select e.xid, e.seq, pg_visible_in_snapshot(e.xid, l.snapshot) as position_expected
    from pawl.event e
    cross join place l
  ) e on e.xid = n.xid and e.seq = n.seq
)
select l.position as head,
  l.removed_until + 1 as first_position,
  (select count(*) from named) as positions,
  (select count(*) from page p where p.before is not null and p.first_position <> p.before + 1)
    + case when exists (select from page) and (select max(p.last_position) from page p) <> l.position then 1 else 0 end as breaks,
  (select count(*) from joined j where j.event_xid is null and j.position > l.removed_until) as positions_without_event,
  (select min(j.position) from joined j where j.event_xid is null and j.position > l.removed_until) as first_without_event,
  (select count(*) from joined j where j.position is null and j.position_expected) as events_without_position,
  (select count(*) - count(distinct (j.event_xid, j.event_seq)) from joined j where j.position is not null and j.event_xid is not null) as repeated
from place l

-- name: trim-pages
-- Removes pages whose events are all removed: those before the first page with an event in a remaining partition. None while a detached partition
-- waits to be dropped, because its events are compared with their pages. One snapshot reads both: another process may detach one at any moment.
-- Locks: those pages' rows.
-- Plan: log_page_pkey.
-- One row: the number of pages. The last page always stays.
with kept as materialized (
  select least(
      (select min(d.from_at) from pawl.day_partitions('event') d where d.from_at is not null),
      (select min(e.created_at) from pawl.event_first e)
    ) as from_at
),
gone as (
  delete from pawl.log_page g
  where g.tenant = ''
    and g.last_position in (
      select p.last_position
      from pawl.log_page p
      where p.tenant = ''
        and not exists (
          select
          from pg_class c
          where c.relnamespace = 'pawl'::regnamespace
            and c.relname ~ '^event_[0-9]{8}$'
            and c.relkind = 'r'
            and not c.relispartition
        )
        and p.last_position < coalesce(
          (
            select q.last_position
            from pawl.log_page q
            cross join kept k
            where q.tenant = ''
              and q.to_at >= k.from_at
            order by q.last_position
            limit 1
          ),
          (select max(q.last_position) from pawl.log_page q where q.tenant = '')
        )
      order by p.last_position
      limit :limit::integer
    )
  returning 1
)
select count(*)::integer as removed
from gone

-- name: note-removed
-- Stores the position up to which events may be removed, before they are.
-- Locks: the sequencer's row.
-- Plan: sequencer_pkey.
-- No row is returned.
update pawl.sequencer s
set removed_until = greatest(s.removed_until, :until::bigint)
where s.tenant = ''

-- name: rebase
-- Gives positions after a restore, in a new generation of the log.
-- Locks: the sequencer's row.
-- Plan: a call. Every kept event is read once.
-- One row: the number of events that got a position. A null head: another process does it.
select r.sequenced, r.head, r.generation
from pawl.rebase_events() r
