-- name: watch
-- Reads this incarnation's own row, and where no other watch is in progress all others and what a sweep has to do. An incarnation
-- is silent if its lease ended, its liveness lock is free, or it was seen in the future: then the clock was set back since.
-- Locks: advisory ones, tried and never waited for, until the statement ends: (pawl, 0) for the watch, (pawl, id) of each incarnation.
-- Plan: pawl.live_workers(), job_held, job_scheduled. :after starts the last one after entries that vacuum cannot remove yet.
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
  case when t.is_mine then (c.now - interval '2 seconds')::text end as reached
from clock c, turn t

-- name: at-work
-- Which of these sessions work on a statement now.
-- Locks: none.
-- Plan: a scan of the sessions that are there, in memory.
-- Rows: those that do. One that is missing has ended, or waits for its client.
select a.pid
from pg_catalog.pg_stat_activity a
where a.pid = any (:pids::integer[])
  and a.state = 'active'

-- name: why
-- What decides whether a job runs: its own state, who works its queue and kind, and how many are ahead (at most 1000 are counted).
-- Locks: none.
-- Plan: job_pkey, job_history_id, job_ready. Suspects are few, whichever index finds the one that runs.
-- No row: there is no such job for this tenant; or it finished before :since, as in get.
with open as materialized (
  select p.queues, p.kinds
  from pawl.worker_process p
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
),
j as materialized (
  select x.id, x.state, x.kind, x.queue, x.run_at, x.due, x.attempt, x.crashes, x.snoozes, x.suspect,
    x.suspect and x.crashes - x.excused >= coalesce(x.max_crashes, 3) - 1 as is_deciding, x.last_error, x.holder, null::timestamptz as finished_at,
    x.postponed
  from pawl.job x
  where x.tenant = :tenant::text
    and x.id = :id::bigint
  union all
  select h.id, h.outcome, h.kind, h.queue, null, null, h.attempt, h.crashes, 0, false, false, h.reason, h.holder, h.finished_at, 0
  from pawl.job_history h
  where h.tenant = :tenant::text
    and h.id = :id::bigint
    and h.finished_at >= coalesce(:since::timestamptz, to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days')
)
select j.state, j.kind, j.queue, j.run_at, j.attempt, j.crashes, j.snoozes, j.suspect, j.is_deciding, j.last_error, j.finished_at, j.holder, p.name as holder_name,
  w.close_reason as holder_closed,
  (
    select r.holder
    from pawl.job r
    where r.queue = j.queue
      and r.suspect
      and r.holder is not null
      and r.crashes - r.excused >= r.max_crashes - 1
    limit 1
  ) as alone_with,
  array(
    select distinct q.queue
    from open o
    cross join unnest(o.queues) q(queue)
    where j.kind = any (o.kinds)
    order by 1
    limit 5
  ) as kind_queues,
  array(
    select distinct k.kind
    from open o
    cross join unnest(o.kinds) k(kind)
    where not starts_with(k.kind, 'pawl.')
    order by 1
    limit :kinds::integer
  ) as running_kinds,
  exists (select from open o where j.queue = any (o.queues)) as is_queue_worked,
  exists (select from open o where j.queue = any (o.queues) and j.kind = any (o.kinds)) as is_kind_known,
  (
    select count(*)::integer
    from (
      select
      from pawl.job a
      where a.queue = j.queue
        and a.state = 'ready'
        and not a.suspect
        and (a.due, a.id) < (j.due, j.id)
      limit 1000
    ) before
  ) as ahead,
  j.postponed
from j
left join pawl.worker w on w.tenant = '' and w.id = j.holder
left join pawl.worker_process p on p.tenant = '' and p.id = j.holder

-- name: show-strays
-- A closed worker that holds something although it was found to hold nothing (the clock was set forward in between) is shown to the sweeps again.
-- Locks: its worker row, in the function.
-- Plan: the few closed workers that are still there, job_held.
-- Rows: those workers.
select w.id, pawl.show_worker(w.id)::text as shown
from pawl.worker w
where w.emptied_at is not null
  and (select true from pawl.job j where j.state = 'running' and j.holder = w.id limit 1)
