-- Looks at this incarnation's own row, and where no other watch is in progress at all others and at what a sweep has to do. An incarnation
-- is silent if its lease ended, its liveness lock is free, or it was seen in the future: then the clock was set back since.
-- Locks: advisory ones, tried and never waited for, until the statement ends: (pawl, 0) for the watch, (pawl, id) of each incarnation.
-- Plan: pawl.live_workers(), job_held, job_scheduled. :after starts the last one behind entries that vacuum cannot remove yet.
-- One row. Without the turn only `mine` says something: 'open' or 'asked', or null where the incarnation is closed.
with clock as materialized (
  select pawl.now() as now
),
turn as materialized (
  select pg_try_advisory_xact_lock(:lock_class::integer, 0) as is_mine
),
live as materialized (
  select w.id, w.nonce, w.asked_by, w.look_ms, w.closed_at,
    w.lease_until < c.now or w.seen_at > c.now + interval '1 second' as is_ended,
    w.asked_at is null or w.asked_at not between c.now - interval '15 seconds' and c.now as may_ask,
    case
      when w.closed_at is null and w.locks and w.id <> :worker::integer and t.is_mine
      then pg_try_advisory_xact_lock(:lock_class::integer, w.id)
      else false
    end as is_free
  from pawl.live_workers() w, clock c, turn t
  where t.is_mine
    or w.id = :worker::integer
),
gone as materialized (
  -- One probe of job_held for each: the planner may answer an `exists` from a scan of all that run.
  select l.id, l.closed_at, (select true from pawl.job j where j.state = 'running' and j.holder = l.id limit 1) is true as holds
  from live l
  where l.closed_at is not null
)
select t.is_mine as is_turn,
  (
    select case when l.asked_by is null then 'open' else 'asked' end
    from live l
    where l.id = :worker::integer
      and l.nonce = :nonce::uuid
      and l.closed_at is null
  ) as mine,
  (select array_agg(l.id) from live l where l.closed_at is null) as open,
  (
    select jsonb_agg(jsonb_build_object('id', l.id, 'question', l.asked_by, 'mayAsk', l.may_ask, 'lookMs', l.look_ms,
      'reason', case when l.is_ended then 'lease ended' else 'process died' end))
    from live l
    where l.closed_at is null
      and l.id <> :worker::integer
      and (l.is_ended or l.is_free)
  ) as silent,
  (select array_agg(g.id) from gone g where g.holds) as lost,
  -- A claim that began before the closing may commit after it; no statement lasts two minutes.
  (select array_agg(g.id) from gone g where not g.holds and g.closed_at < c.now - interval '2 minutes') as emptied,
  (
    select ceil(extract(epoch from least(k.run_at, c.now + interval '1 hour') - c.now) * 1000)::integer
    from pawl.job k
    where t.is_mine
      and k.state = 'scheduled'
      and k.run_at >= :after::timestamptz
    order by k.run_at
    limit 1
  ) as next_ms,
  date_part('epoch', c.now) * 1000 as now_ms,
  -- A transaction that is about to commit may have read the clock before this statement did.
  (c.now - interval '2 seconds')::text as reached
from clock c, turn t
