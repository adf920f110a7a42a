-- Where the log stands, and what waits for a position. The count stops at 10,000. Events from before a restore may carry ids that no
-- transaction of this cluster has had yet, and have their position.
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
