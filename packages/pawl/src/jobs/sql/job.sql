-- name: claim
-- Claims the next ready jobs of queues for one incarnation, with one new fence for all of them: all that it finds in the first queue, then in
-- the next, up to the limit. The limits of their kinds are written into the rows, so that a sweep by a process that does not define the kind obeys them.
-- Locks: the job rows it takes, SKIP LOCKED; it waits for no lock.
-- Plan: job_ready in order, once per queue, then a TID scan. :after_dues and :after_ids start it after entries that vacuum cannot remove yet.
-- No row: nothing is ready, or the incarnation is closed. An ended lease does not matter: a take-over closes the incarnation first.
with holder as materialized (
  select w.id, pawl.now() as now
  from pawl.worker w
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
),
picked as materialized (
  select f.ctid
  from unnest(:queues::text[], :after_dues::timestamptz[], :after_ids::bigint[]) q(name, after_due, after_id)
  cross join lateral (
    select j.ctid
    from pawl.job j
    where j.queue = q.name
      and j.state = 'ready'
      and not j.suspect
      and (j.due, j.id) > (q.after_due, q.after_id)
      and j.kind = any (:kinds::text[])
      and exists (select from holder)
    order by j.due, j.id
    limit :limit::integer
    for update skip locked
  ) f
  limit :limit::integer
)
update pawl.job j
set state = 'running',
  fence = (select pawl.next_fence()),
  holder = h.id,
  attempt = j.attempt + 1,
  revision = j.revision + 1,
  claimed_at = h.now,
  max_attempts = coalesce(j.given_attempts, (:max_attempts::integer[])[array_position(:kinds::text[], j.kind)]),
  max_crashes = (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)],
  run_until = h.now + (:timeouts_ms::bigint[])[array_position(:kinds::text[], j.kind)] * interval '1 millisecond'
from holder h
where j.ctid = any (array(select p.ctid from picked p))
  and j.state = 'ready'
returning j.tenant, j.id, j.fence, j.queue, j.kind, j.payload::text as payload, j.payload_version, j.attempt, j.max_attempts, j.crashes,
  j.headers::text as headers,
  case when isfinite(j.due) then (date_part('epoch', j.due) * 1000000)::bigint end as due_us,
  -- Asked once, not for each row. It saves a claim-suspect after each claim that finds jobs.
  (select exists (select from pawl.job s where s.queue = any (:queues::text[]) and s.suspect and s.state = 'ready')) as are_suspects_ready

-- name: claim-suspect
-- Claims jobs that died with their process: at most :limit beside other work, each kind up to its room; and at most one whose next crash
-- would be its last. ':deciding' says what becomes of that one: 'leave' it, run it 'alone' (if no other process has one), or claim 'only' such.
-- Locks: the job rows it takes, SKIP LOCKED; it waits for no lock.
-- Plan: job_suspect, then TID scans.
-- Rows: the claimed jobs, at least one row; each says what was left waiting. A row without an id: nothing was claimed.
with holder as materialized (
  select w.id, pawl.now() as now
  from pawl.worker w
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
),
-- The first of each queue, of kinds that have room: however many wait, few are read.
beside as materialized (
  select f.ctid, f.kind, f.due, f.id, row_number() over (partition by f.kind order by f.due, f.id) as number
  from unnest(:queues::text[]) q(name)
  cross join lateral (
    select j.ctid, j.kind, j.due, j.id
    from pawl.job j
    where j.queue = q.name
      and j.suspect
      and j.state = 'ready'
      and (:rooms::integer[])[array_position(:kinds::text[], j.kind)] > 0
      and j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1
    order by j.due, j.id
    limit case when :limit::integer > 0 then 4 * :limit::integer + 16 else 0 end
  ) f
  where exists (select from holder)
),
-- Those whose next crash would be their last, among the first thousand suspects of each queue.
deciding as materialized (
  select f.ctid, f.due, f.id
  from unnest(:queues::text[]) q(name)
  cross join lateral (
    select j.ctid, j.due, j.id, j.crashes - j.excused >= (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1 as is_deciding
    from pawl.job j
    where j.queue = q.name
      and j.suspect
      and j.state = 'ready'
      and j.kind = any (:kinds::text[])
    order by j.due, j.id
    limit 1000
  ) f
  where f.is_deciding
    and exists (select from holder)
  order by f.due, f.id
  limit 2
),
chosen as materialized (
  (
    select n.ctid
    from beside n
    where n.number <= (:rooms::integer[])[array_position(:kinds::text[], n.kind)]
    order by n.due, n.id
    limit :limit::integer
  )
  union all
  (
    select n.ctid
    from deciding n
    where :deciding::text <> 'leave'
      and (
        :deciding::text = 'only'
        or not exists (
          select
          from pawl.job r
          where r.queue = any (:queues::text[])
            and r.suspect
            -- It runs. A test of the state would let the planner walk job_held from end to end.
            and r.holder is not null
            and r.crashes - r.excused >= r.max_crashes - 1
        )
      )
    order by n.due, n.id
    limit 1
  )
),
picked as materialized (
  select j.ctid
  from pawl.job j
  where j.ctid = any (array(select c.ctid from chosen c))
    -- As one value, or the planner may walk job_suspect from end to end.
    and (j.suspect and j.state = 'ready') is true
  for update skip locked
),
claimed as (
  update pawl.job j
  set state = 'running',
    fence = (select pawl.next_fence()),
    holder = h.id,
    attempt = j.attempt + 1,
    revision = j.revision + 1,
    -- One that must run alone is only held as yet: start-alone says when it starts.
    claimed_at = case when j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1 then h.now end,
    max_attempts = coalesce(j.given_attempts, (:max_attempts::integer[])[array_position(:kinds::text[], j.kind)]),
    max_crashes = (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)],
    -- The time that its process may take to empty itself does not count against the job's timeout.
    run_until = h.now + ((:timeouts_ms::bigint[])[array_position(:kinds::text[], j.kind)] + :drain_ms::bigint) * interval '1 millisecond'
  from holder h
  where j.ctid = any (array(select p.ctid from picked p))
    and j.state = 'ready'
  returning j.tenant, j.id, j.fence, j.queue, j.kind, j.payload::text as payload, j.payload_version, j.attempt, j.max_attempts, j.crashes,
    j.headers::text as headers, case when isfinite(j.due) then (date_part('epoch', j.due) * 1000000)::bigint end as due_us,
    j.crashes - j.excused >= j.max_crashes - 1 as is_deciding
),
remaining as (
  select exists (
      select
      from unnest(:queues::text[]) q(name)
      cross join lateral (
        select
        from pawl.job j
        where j.queue = q.name
          and j.suspect
          and j.state = 'ready'
          and j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1
          and j.ctid <> all (array(select c.ctid from chosen c))
        order by j.due, j.id
        limit 1
      ) f
      where exists (select from holder)
    ) as is_suspect_left,
    exists (select from deciding d where d.ctid <> all (array(select c.ctid from chosen c))) as is_deciding_left
)
select r.is_suspect_left, r.is_deciding_left, c.tenant, c.id, c.fence, c.queue, c.kind, c.payload, c.payload_version, c.attempt, c.max_attempts,
  c.crashes, c.headers, c.due_us, c.is_deciding
from remaining r
left join claimed c on true

-- name: start-alone
-- Starts a job that was held until its process was empty. From now on its time runs, and a crash counts.
-- Locks: the job row.
-- Plan: job_pkey, pawl.worker by primary key.
-- One row: it may start. No row: it is no longer held, or its incarnation is closed.
update pawl.job j
set claimed_at = pawl.now(),
  run_until = pawl.now() + :timeout_ms::bigint * interval '1 millisecond'
where j.tenant = :tenant::text
  and j.id = :id::bigint
  and j.fence = :fence::bigint
  and exists (
    select
    from pawl.worker w
    where w.tenant = ''
      and w.id = :worker::integer
      and w.nonce = :nonce::uuid
      and w.closed_at is null
  )
returning j.id

-- name: promote
-- Makes scheduled jobs ready whose time has come, at most :limit of them, by one worker at a time.
-- Locks: an advisory one, (pawl, -1), tried; those job rows, SKIP LOCKED.
-- Plan: job_scheduled in order, then a TID scan. :after_run_at and :after_id start it after entries that vacuum cannot remove yet.
-- One row: how many, the last of them, and in how many milliseconds the next one is due (null: none is scheduled).
with clock as materialized (
  select pawl.now() as now, pg_try_advisory_xact_lock(:lock_class::integer, -1) as is_mine
),
due as materialized (
  select k.ctid, k.run_at, k.id
  from pawl.job k
  where k.state = 'scheduled'
    and (k.run_at, k.id) > (:after_run_at::timestamptz, :after_id::bigint)
    and k.run_at <= (select c.now from clock c)
    and (select c.is_mine from clock c)
  order by k.run_at, k.id
  limit :limit::integer
  for update skip locked
),
moved as (
  -- A second test of the state would let the planner walk job_scheduled instead.
  update pawl.job j
  set state = 'ready',
    revision = j.revision + 1
  where j.ctid = any (array(select d.ctid from due d))
  returning j.queue
),
last as (
  select d.run_at, d.id
  from due d
  order by d.run_at desc, d.id desc
  limit 1
)
select (select count(*)::integer from moved) as promoted,
  (select count(*)::integer from (select pawl.wake(q.queue) from (select distinct m.queue from moved m) q) w) as queues,
  (select l.run_at::text from last l) as last_run_at,
  (select l.id from last l) as last_id,
  (
    select ceil(extract(epoch from least(k.run_at, c.now + interval '1 hour') - c.now) * 1000)::integer
    from pawl.job k, clock c
    where k.state = 'scheduled'
      and k.run_at > (select n.now from clock n)
    order by k.run_at
    limit 1
  ) as next_ms

-- name: settle
-- Settles a batch of jobs as done: deletes each by (id, fence) and writes its history row.
-- Locks: the job rows, by id: a caller's transaction that cancels several jobs in that order cannot wait with us in a circle.
-- Plan: job_pkey for each. The predicate names id and fence and nothing else: a test of the state would walk job_held instead. An
-- array beside the tenant has no order to merge by, so the planner cannot walk job_pkey from end to end where it takes the table for empty.
-- One row: how many. If that is fewer than were given, unsettled tells which were refused; fewer than :at_least raises PW001.
with given as materialized (
  select coalesce(g.tenant, '') as tenant, g.id, g.fence, g.result, g.progress, g.ran_ms
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[], :results::jsonb[], :progress::jsonb[], :ran_ms::integer[])
    as g(tenant, id, fence, result, progress, ran_ms)
  order by g.tenant, g.id
),
gone as (
  delete from pawl.job j
  using given g
  where j.tenant = any (array[g.tenant])
    and j.id = g.id
    and j.fence = g.fence
  returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
    j.payload, j.headers, coalesce(g.progress, j.progress) as progress, g.result, g.ran_ms
),
kept as (
  insert into pawl.job_history (id, fence, created_at, finished_at, ran_ms, holder, attempt, crashes, priority, payload_version, tenant,
    queue, kind, outcome, payload, headers, progress, result)
  select o.id, o.fence, o.created_at, (select pawl.now()), o.ran_ms, o.holder, o.attempt, o.crashes, o.priority, o.payload_version,
    o.tenant, o.queue, o.kind, 'done', o.payload, o.headers, o.progress, o.result
  from gone o
)
select count(*)::integer as settled,
  case when count(*) < :at_least::integer then pawl.raise_lease_lost('job', min(o.id), min(o.fence))::text end as refused
from gone o

-- name: settle-failed
-- Ends a batch of attempts without finishing their jobs: each is retried later, snoozed, given back, or dead.
-- Locks: the job rows, by primary key, as settle. The new fence makes a second ending of the same attempt a refusal.
-- Plan: job_pkey for each, with the array of settle.
-- Rows: every accepted job with its state, among them what this very fence ended so before (the answer to that commit was lost; a
-- rescuer's record of the same fence says 'crashed', that of a time-out by the keeper has another error; a snooze and a release leave no record). A
-- job that is missing here was refused.
with given as materialized (
  select g.tenant, g.id, g.fence, g.holder, g.outcome, g.delay_ms, g.error, g.progress, g.ran_ms
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[], :holders::integer[], :outcomes::text[], :delays_ms::bigint[],
    :errors::text[], :progress::jsonb[], :ran_ms::integer[]) as g(tenant, id, fence, holder, outcome, delay_ms, error, progress, ran_ms)
  order by g.tenant, g.id
),
clock as materialized (
  select pawl.now() as now
),
changed as (
  update pawl.job j
  set state = case when g.delay_ms is null then 'dead' when g.delay_ms > 0 then 'scheduled' else 'ready' end,
    -- Given back with a delay: a job that must run alone, and whose process could not empty itself in time.
    run_at = case when g.outcome = 'released' and g.delay_ms = 0 then j.run_at else c.now + coalesce(g.delay_ms, 0) * interval '1 millisecond' end,
    due = case
      when g.outcome = 'released' then j.due
      else c.now + coalesce(g.delay_ms, 0) * interval '1 millisecond' - j.priority * interval '1 minute'
    end,
    attempt = j.attempt - case when g.outcome in ('snoozed', 'released') then 1 else 0 end,
    -- A job that fails in order does not kill its process; a snooze shows nothing, and would let crash and snooze alternate forever.
    suspect = j.suspect and g.outcome in ('released', 'snoozed'),
    excused = case when g.outcome in ('released', 'snoozed') then j.excused else j.crashes end,
    -- A job that is put off again and again reaches the end of a type here first; a revision starts over.
    snoozes = least(j.snoozes, 2147483646) + case when g.outcome = 'snoozed' then 1 else 0 end,
    postponed = case when g.outcome = 'released' then least(j.postponed, 32766) + case when g.delay_ms > 0 then 1 else 0 end else 0 end,
    last_error = coalesce(g.error, j.last_error),
    progress = coalesce(g.progress, j.progress),
    fence = pawl.next_fence(),
    revision = case when j.revision < 2000000000 then j.revision + 1 else 1 end,
    holder = null,
    run_until = null,
    claimed_at = null
  from given g, clock c
  where j.tenant = any (array[g.tenant])
    and j.id = g.id
    and j.fence = g.fence
  returning j.tenant, j.id, j.kind, j.queue, j.state, j.attempt, g.fence, g.holder, g.outcome, g.error, g.ran_ms, c.now
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, ran_ms, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, o.now, o.ran_ms, o.holder, o.attempt, o.tenant, o.kind, o.outcome, o.error
  from changed o
  where o.outcome not in ('released', 'snoozed')
),
alerted as materialized (
  select pawl.raise_alert(t.tenant, 'job.timed-out', t.kind,
    format('%s job(s) of kind %s timed out; the last is %s', t.count, t.kind, t.last), t.count, interval '1 hour')
  from (
    select o.tenant, o.kind, count(*) as count, max(o.id) as last
    from changed o
    where o.outcome = 'timed out'
      and o.state <> 'dead'
    group by o.tenant, o.kind
    order by o.tenant, o.kind
  ) t
)
select o.tenant, o.id, o.fence, o.state, case when o.state = 'ready' then pawl.wake(o.queue) is null end as woke,
  (select count(*) from alerted) as alerts
from changed o
union all
select g.tenant, g.id, g.fence, 'ended before', null, null
from given g
where exists (
  select
  from pawl.job_attempt a
  where a.tenant = g.tenant
    and a.job_id = g.id
    and a.fence = g.fence
    and a.outcome = g.outcome
    and a.error is not distinct from g.error
    and a.ended_at >= least(to_timestamp((g.id >> 21) / 1000.0), (select c.now from clock c)) - interval '2 days'
)

-- name: touch
-- Stores the progress of a running job; a null leaves the last one, and only says that it goes on.
-- Locks: the job row, SKIP LOCKED: a transaction that guards the job is not waited for.
-- Plan: job_pkey.
-- One row: 'stored', 'busy' (its own transaction has it locked; try again later) or 'lost'.
with mine as materialized (
  select j.ctid
  from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and j.fence = :fence::bigint
  for no key update skip locked
),
stored as (
  update pawl.job j
  set progress = coalesce(:progress::jsonb, j.progress),
    progress_at = pawl.now()
  where j.ctid = any (array(select m.ctid from mine m))
    and j.fence = :fence::bigint
  returning 1
)
select case
    when exists (select from stored) then 'stored'
    when exists (select from pawl.job j where j.tenant = :tenant::text and j.id = :id::bigint and j.fence = :fence::bigint) then 'busy'
    else 'lost'
  end as answer

-- name: release-unknown
-- Gives back what this incarnation holds without knowing it: a claim whose answer was lost. No attempt is burnt, and
-- others hear of them.
-- Locks: those job rows, SKIP LOCKED.
-- Plan: job_held, then a TID scan. A second test of the state there would let the planner walk job_held instead.
-- Rows: the jobs given back; none also where the incarnation is closed, whose jobs a rescue takes.
with released as (
  update pawl.job j
  set state = 'ready',
    attempt = j.attempt - 1,
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  where j.ctid = any (array(
      select k.ctid
      from pawl.job k
      where k.state = 'running'
        and k.holder = :worker::integer
        and (k.id, k.fence) not in (select g.id, g.fence from unnest(:ids::bigint[], :fences::bigint[]) as g(id, fence))
        and exists (
          select
          from pawl.worker w
          where w.tenant = ''
            and w.id = :worker::integer
            and w.nonce = :nonce::uuid
            and w.closed_at is null
        )
      order by k.id
      for update skip locked
    ))
  returning j.tenant, j.id, j.queue
)
select r.tenant, r.id, pawl.wake(r.queue) is null as woke
from released r

-- name: rescue
-- Takes the jobs of these closed incarnations away from them, at most :limit: each is a suspect now, or dead at its limit of crashes. What
-- an orderly stopped worker left running, or a process only held and had not started, is ready again, and as suspect as before.
-- Locks: those job rows, SKIP LOCKED: one that a transaction guards is left for the next round.
-- Plan: pawl.worker by primary key, job_held, then a TID scan. A test of the state beside the ctid would let the planner walk job_held from end
-- to end.
-- Rows: the jobs, with their new state.
with lost as materialized (
  select j.ctid, j.holder, j.fence, w.close_reason, j.claimed_at is not null as has_started,
    w.close_reason <> 'stopped' and j.claimed_at is not null as is_crash
  from unnest(:workers::integer[]) g(id)
  join pawl.worker w on w.tenant = '' and w.id = g.id and w.closed_at is not null
  cross join lateral (
    select k.ctid, k.holder, k.fence, k.claimed_at
    from pawl.job k
    where k.state = 'running'
      and k.holder = w.id
    order by k.id
    limit :limit::integer
    for update skip locked
  ) j
  limit :limit::integer
),
changed as (
  update pawl.job j
  set state = case when l.is_crash and j.crashes + 1 - j.excused >= coalesce(j.max_crashes, :max_crashes::integer) then 'dead' else 'ready' end,
    attempt = j.attempt - case when l.is_crash then 0 else 1 end,
    crashes = j.crashes + case when l.is_crash then 1 else 0 end,
    suspect = case when l.is_crash then j.crashes + 1 - j.excused < coalesce(j.max_crashes, :max_crashes::integer) else j.suspect end,
    last_error = case when l.is_crash then 'Worker ' || l.holder || ' ended while the job may have been running (' || l.close_reason || ')' else j.last_error end,
    -- Of a dead job: when it died.
    run_at = case when l.is_crash and j.crashes + 1 - j.excused >= coalesce(j.max_crashes, :max_crashes::integer) then pawl.now() else j.run_at end,
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  from lost l
  where j.ctid = l.ctid
    and j.fence = l.fence
  returning j.tenant, j.id, j.queue, j.kind, j.state, j.attempt, j.crashes, j.last_error, l.holder, l.fence, l.has_started, l.is_crash
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, pawl.now(), o.holder, o.attempt, o.tenant, o.kind,
    case when o.is_crash then 'crashed' else 'interrupted' end, o.last_error
  from changed o
  where o.has_started
)
select o.tenant, o.id, o.kind, o.state, o.holder, o.crashes, pawl.wake(o.queue) is null as woke
from changed o

-- name: time-out
-- Takes jobs away that ran past their time limit: those of the given worker whose run_until was before :before, without those that it says it
-- runs, and the given ones, which its keeper saw to be overdue while its own main thread was blocked. Counted as an attempt; dead, or retried with
-- the default backoff: the kind's own is not known here.
-- Locks: those job rows, SKIP LOCKED.
-- Plan: job_held, then a TID scan. :after starts it after entries that vacuum cannot remove yet. A test of the state beside a ctid would let the
-- planner walk job_held from end to end.
-- Rows: the jobs, with their new state.
with clock as materialized (
  select pawl.now() as now
),
blocking as materialized (
  select k.ctid, k.id, k.fence
  from pawl.job k
  -- Only where jobs were given: beside an old snapshot this scan meets every dead entry of the worker.
  where cardinality(:ids::bigint[]) > 0
    and k.state = 'running'
    and k.holder = :worker::integer
),
overdue as materialized (
  select j.ctid, j.fence, j.holder, least(3600, power(2, least(j.attempt - j.crashes - 1, 16))) * random() * interval '1 second' as delay
  from pawl.job j
  where j.ctid = any (array(
      (
        select k.ctid
        from pawl.job k
        where k.state = 'running'
          and k.holder = :worker::integer
          and k.run_until < :before::timestamptz
          and k.run_until >= :after::timestamptz
          and (k.id, k.fence) not in (select r.id, r.fence from unnest(:running_ids::bigint[], :running_fences::bigint[]) as r(id, fence))
        limit :limit::integer
      )
      union all
      select b.ctid
      from unnest(:ids::bigint[], :fences::bigint[]) as u(id, fence)
      join blocking b on b.id = u.id and b.fence = u.fence
    ))
    -- Tested again in the row as it is once it is locked.
    and (
      j.run_until < (select c.now from clock c)
      or (j.id, j.fence) in (select u.id, u.fence from unnest(:ids::bigint[], :fences::bigint[]) as u(id, fence))
    )
  order by j.id
  for update skip locked
),
changed as (
  update pawl.job j
  set state = case when j.attempt - j.crashes >= coalesce(j.max_attempts, :max_attempts::integer) then 'dead' else 'scheduled' end,
    run_at = c.now + case when j.attempt - j.crashes >= coalesce(j.max_attempts, :max_attempts::integer) then interval '0' else o.delay end,
    due = c.now + o.delay - j.priority * interval '1 minute',
    suspect = false,
    excused = j.crashes,
    last_error = 'The attempt ran longer than its timeout',
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  from overdue o, clock c
  where j.ctid = o.ctid
    and j.fence = o.fence
  returning j.tenant, j.id, j.queue, j.kind, j.state, j.attempt, j.last_error, o.holder, o.fence
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, (select c.now from clock c), o.holder, o.attempt, o.tenant, o.kind, 'timed out', o.last_error
  from changed o
),
alerted as materialized (
  select pawl.raise_alert(t.tenant, 'job.timed-out', t.kind,
    format('%s job(s) of kind %s timed out; the last is %s', t.count, t.kind, t.last), t.count, interval '1 hour')
  from (
    select o.tenant, o.kind, count(*) as count, max(o.id) as last
    from changed o
    where o.state <> 'dead'
    group by o.tenant, o.kind
    order by o.tenant, o.kind
  ) t
)
select o.tenant, o.id, o.kind, o.state, o.holder, pg_notify('pawl_lost', o.holder::text) is null as told,
  (select count(*) from alerted) as alerts
from changed o

-- name: excuse
-- Excuses the crashes that were counted when this incarnation was closed as dead: its process lives, and was only cut off from the database. One
-- that was silent for a whole lease is not excused: what froze it may be the job. Each recorded attempt is 'interrupted' from then on, so that
-- none is excused twice. Holder and state stay as they are; a job that the crash made dead stays dead, because its death was reported, and its
-- error says that the process lives.
-- Locks: the job rows, SKIP LOCKED, then those attempts.
-- Plan: pawl.worker by primary key, job_attempt_job, job_pkey, job_held, job_suspect.
-- Rows: the jobs to be asked for again: not taken over yet, or locked; and those that a claim brought whose answer was lost, which the process
-- does not know.
with cut as materialized (
  select w.id
  from pawl.worker w
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.close_reason = 'process died'
),
given as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  where exists (select from cut)
  order by g.tenant, g.id
),
crashed as materialized (
  select a.tenant, a.job_id, a.fence, a.ended_at, a.error,
    -- An orderly end since then has excused it already.
    not exists (
      select
      from pawl.job_attempt o
      where o.tenant = a.tenant
        and o.job_id = a.job_id
        and o.ended_at > a.ended_at
        and o.outcome in ('failed', 'timed out', 'invalid')
    ) as counts
  from given g
  join pawl.job_attempt a on a.tenant = g.tenant and a.job_id = g.id and a.fence = g.fence
  where a.outcome = 'crashed'
    and a.ended_at >= least(to_timestamp((g.id >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
),
free as materialized (
  select j.tenant, j.id, c.counts, c.error
  from crashed c
  join pawl.job j on j.tenant = any (array[c.tenant]) and j.id = c.job_id
  for no key update of j skip locked
),
excused as (
  update pawl.job j
  set excused = least(j.crashes, j.excused + 1),
    last_error = j.last_error || case when j.state = 'dead' and j.last_error = f.error then '; it is alive and was only cut off from the database' else '' end
  from free f
  -- By its key: one that was claimed since this statement began has another ctid, and would be recorded as excused without being so.
  where j.tenant = any (array[f.tenant])
    and j.id = f.id
    and f.counts
),
recorded as (
  update pawl.job_attempt a
  set outcome = 'interrupted',
    error = c.error || '; it is alive and was only cut off from the database'
  from crashed c
  where a.tenant = c.tenant
    and a.job_id = c.job_id
    and a.fence = c.fence
    and a.ended_at = c.ended_at
    and a.outcome = 'crashed'
    and (
      exists (select from free f where f.tenant = c.tenant and f.id = c.job_id)
      or not exists (select from pawl.job j where j.tenant = any (array[c.tenant]) and j.id = c.job_id)
    )
)
select g.tenant, g.id, g.fence
from given g
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id
where j.fence = g.fence
  or exists (select from crashed c where c.tenant = g.tenant and c.job_id = g.id)
    and not exists (select from free f where f.tenant = g.tenant and f.id = g.id)
union
select r.tenant, r.id, r.fence
from cut c
cross join lateral (
  select j.tenant, j.id, j.fence
  from pawl.job j
  where j.state = 'running'
    and j.holder = c.id
  limit 5000
) r
union
select s.tenant, s.id, a.fence
from unnest(:queues::text[]) q(name)
cross join lateral (
  select j.tenant, j.id
  from pawl.job j
  where j.queue = q.name
    and j.suspect
  order by j.due, j.id
  limit 5000
) s
join pawl.job_attempt a on a.job_id = s.id and a.tenant = s.tenant
where a.holder = :worker::integer
  and a.outcome = 'crashed'
  and exists (select from cut)

-- name: cancel
-- Cancels a job in any live state. A running one is taken from its holder: its late result finds no row.
-- Locks: the job row, by primary key, and no alert: the caller's transaction may stay open, and a process that raises that alert would wait.
-- Plan: job_pkey.
-- No row: it is not live, :revision is given and is not its current one, or its kind is Pawl's own.
with gone as (
  delete from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and (:is_pawls::boolean or not starts_with(j.kind, 'pawl.'))
    and (:revision::integer is null or j.revision = :revision::integer)
  returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
    j.payload, j.headers, j.progress, j.state
),
kept as (
  insert into pawl.job_history (id, fence, created_at, finished_at, holder, attempt, crashes, priority, payload_version, tenant, queue, kind,
    outcome, payload, headers, progress, reason)
  select o.id, o.fence, o.created_at, pawl.now(), o.holder, o.attempt, o.crashes, o.priority, o.payload_version, o.tenant, o.queue, o.kind,
    'cancelled', o.payload, o.headers, o.progress, left(:reason::text, 2000)
  from gone o
)
select o.state, o.holder,
  case when o.holder is not null and :wake::boolean then pg_notify('pawl_lost', o.holder::text) is null end as told,
  case
    when :by::text is not null
      then pawl.write_audit(o.tenant, :by::text, 'jobs.cancel', 'job ' || o.id, coalesce(:reason::text, ''))::text
  end as noted
from gone o

-- name: retry
-- Makes a dead or scheduled job ready now. A dead one starts over with all its attempts.
-- Locks: the job row, by primary key, and no alert: the caller's transaction may stay open, and a process that raises that alert would wait.
-- Plan: job_pkey.
-- No row: it is not dead or scheduled, :revision is given and is not its current one, or its kind is Pawl's own.
with changed as (
  update pawl.job j
  set state = 'ready',
    run_at = pawl.now(),
    due = pawl.now() - j.priority * interval '1 minute',
    attempt = case when j.state = 'dead' then 0 else j.attempt end,
    crashes = case when j.state = 'dead' then 0 else j.crashes end,
    excused = case when j.state = 'dead' then 0 else j.excused end,
    suspect = j.suspect or (j.state = 'dead' and j.crashes > j.excused),
    fence = pawl.next_fence(),
    revision = j.revision + 1
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and j.state in ('dead', 'scheduled')
    and (:is_pawls::boolean or not starts_with(j.kind, 'pawl.'))
    and (:revision::integer is null or j.revision = :revision::integer)
  returning j.tenant, j.id, j.queue, j.revision
)
select o.revision, case when :wake::boolean then pawl.wake(o.queue) is null end as woke,
  case
    when :by::text is not null
      then pawl.write_audit(o.tenant, :by::text, 'jobs.retry', 'job ' || o.id, coalesce(:reason::text, ''))::text
  end as noted
from changed o

-- name: get
-- One job by id, live or finished.
-- Locks: none.
-- Plan: job_pkey, then job_history_id in the partitions from the day that the id carries, or from :since.
-- No row: there is no such job for this tenant, or its history has been removed by retention; or the clock was days ahead when the id was
-- made, and the job finished before its day.
select j.tenant, j.id, j.fence, j.revision, j.queue, j.kind, j.state, j.priority, j.attempt, j.max_attempts, j.crashes, j.snoozes, j.suspect,
  j.payload, j.payload_version, j.headers, null::jsonb as result, j.progress, j.last_error, j.holder, j.created_at, j.run_at, j.claimed_at,
  j.run_until, null::timestamptz as finished_at, null::integer as ran_ms
from pawl.job j
where j.tenant = :tenant::text
  and j.id = :id::bigint
union all
select h.tenant, h.id, h.fence, null, h.queue, h.kind, h.outcome, h.priority, h.attempt, null, h.crashes, null, false, h.payload,
  h.payload_version, h.headers, h.result, h.progress, h.reason, h.holder, h.created_at, null, null,
  null, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
  and h.finished_at >= coalesce(:since::timestamptz, to_timestamp((:id::bigint >> 21) / 1000.0) - interval '2 days')

-- name: list-open
-- A page of open jobs, newest first.
-- Locks: none.
-- Plan: job_pkey backwards.
-- No row: no such job is older than :after. Pawl's own that wait for their time are there only if a state or a kind is asked for.
select j.tenant, j.id, j.queue, j.kind, j.state, j.priority, j.attempt, j.crashes, j.suspect, j.last_error, j.holder, j.created_at, j.run_at,
  j.revision
from pawl.job j
where j.tenant = :tenant::text
  and j.id < coalesce(:after::bigint, 9223372036854775807)
  and (:state::text is null or j.state = :state::text)
  and (:kind::text is null or j.kind = :kind::text)
  and (:state::text is not null or :kind::text is not null or j.state <> 'scheduled' or not starts_with(j.kind, 'pawl.'))
  and (:queue::text is null or j.queue = :queue::text)
order by j.id desc
limit :limit::integer

-- name: lock-group
-- Holds a group of jobs for a shared transaction, so that no settle at its end can be refused and undo the neighbours' work.
-- Locks: the job rows, by id, SKIP LOCKED: a row that a stranger has locked must not hold up the others of its group, which has no time limit here.
-- Plan: job_pkey for each, with the array of settle.
-- Rows: those still held; the others are lost, or locked.
select j.id, j.tenant
from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id and j.fence = g.fence
order by j.id
for no key update of j skip locked

-- name: locked
-- Which of these jobs are held under their fence and locked by another transaction: a settle would wait for them.
-- Locks: the others' rows, SKIP LOCKED, until this statement ends; it waits for no lock.
-- Plan: job_pkey for each, with the array of settle.
-- Rows: the locked ones. One that is gone or has another fence is not among them: its settle is refused without waiting.
with given as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  order by g.tenant, g.id
),
free as materialized (
  select j.tenant, j.id
  from given g
  join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id
  for update of j skip locked
)
select g.tenant, g.id
from given g
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id and j.fence = g.fence
where not exists (select from free f where f.tenant = g.tenant and f.id = g.id)

-- name: fates
-- What became of attempts that are no longer held under their fence: settled, cancelled, timed out or taken over.
-- Locks: none.
-- Plan: job_pkey for each; job_history_id for the lost ones only.
-- Rows: those that are not held, with the outcome if they finished under this very fence. Without one, another holder has the job, or had it.
with gone as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  where (
    select true
    from pawl.job j
    where j.tenant = g.tenant
      and j.id = g.id
      and j.fence = g.fence
  ) is null
)
select l.tenant, l.id, l.fence, h.outcome, h.reason
from gone l
left join lateral (
  select x.outcome, x.reason
  from pawl.job_history x
  where x.tenant = l.tenant
    and x.id = l.id
    and x.fence = l.fence
    and x.finished_at >= least(to_timestamp((l.id >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
  limit 1
) h on true

-- name: enqueue
-- Adds jobs of one kind.
-- Locks: none but its own new rows.
-- Plan: a call.
-- One row: the ids as one string, because a row for each would cost as much as a third of its insert. Null where there was no payload.
select pg_catalog.string_agg(id::text, ',') as ids
from pawl.enqueue_many(:tenant::text, :queue::text, :kind::text, :payloads::jsonb, :payload_version::integer, :run_at::timestamptz,
  :delay_ms::bigint, :priority::integer, :max_attempts::integer, :headers::jsonb, :wake::boolean) as id

-- name: complete
-- Settles a job as done in the transaction of its handler, or of a caller.
-- Locks: the job's row.
-- Plan: a call.
-- One row, without meaning; PW001 where the fence is not the current one.
select pawl.complete_job(:tenant::text, :id::bigint, :fence::bigint, :result::jsonb, :ran_ms::integer, :progress::jsonb)::text as completed

-- name: snooze
-- Puts a job off in the transaction of its handler.
-- Locks: the job's row.
-- Plan: a call.
-- One row, without meaning; PW001 where the fence is not the current one.
select pawl.snooze_job(:tenant::text, :id::bigint, :fence::bigint, :delay_ms::bigint, :progress::jsonb)::text as snoozed

-- name: complete-replicated
-- The same as complete, in a transaction of a caller whose commit must reach a standby.
-- Locks: the job's row.
-- Plan: a call.
-- One row, without meaning; PW001 where the fence is not the current one.
select pawl.complete_job(:tenant::text, :id::bigint, :fence::bigint, :result::jsonb, :ran_ms::integer, :progress::jsonb)::text as completed,
  pawl.set_durability('replicated')::text as level

-- name: guard
-- Asserts that a job is still held under its fence, until the transaction ends.
-- Locks: the job's row.
-- Plan: a call.
-- One row, without meaning; PW001 where the fence is not the current one.
select pawl.guard_job(:tenant::text, :id::bigint, :fence::bigint)::text as held
