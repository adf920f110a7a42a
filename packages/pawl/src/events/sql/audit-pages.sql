-- Checks the log itself: pages that do not follow each other, positions without an event, events with two positions, and events that should
-- have a position and have none.
-- Locks: none.
-- Plan: reads every page and every event once, hash-joined, in one snapshot.
-- One row: the numbers.
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
