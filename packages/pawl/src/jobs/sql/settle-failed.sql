-- Ends a batch of attempts without finishing their jobs: each is retried later, snoozed, given back, or dead.
-- Locks: the job rows, by primary key, as settle.sql. The new fence makes a second ending of the same attempt a refusal.
-- Plan: job_pkey for each, with the array of settle.sql.
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
    -- Who failed in order does not kill its process; a snooze says nothing, and would let crash and snooze alternate for ever.
    suspect = j.suspect and g.outcome in ('released', 'snoozed'),
    excused = case when g.outcome in ('released', 'snoozed') then j.excused else j.crashes end,
    -- Whoever is put off again and again reaches the end of a type here first; a revision starts over.
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
  returning j.tenant, j.id, j.kind, j.queue, j.state, j.attempt, j.run_at, g.fence, g.holder, g.outcome, g.error, g.ran_ms, c.now,
    case
      when j.state = 'dead' then 'job.dead'
      when g.outcome = 'timed out' then 'job.timed-out'
      when g.outcome = 'released' and j.postponed >= 10 then 'job.postponed'
    end as alert
),
recorded as (
  insert into pawl.job_attempt (job_id, fence, ended_at, ran_ms, holder, attempt, tenant, kind, outcome, error)
  select o.id, o.fence, o.now, o.ran_ms, o.holder, o.attempt, o.tenant, o.kind, o.outcome, o.error
  from changed o
  where o.outcome not in ('released', 'snoozed')
),
alerted as (
  insert into pawl.alert as a (tenant, code, subject, message, count)
  select o.tenant, o.alert, o.kind,
    format('%s job(s) of kind %s %s; the last is %s%s', count(*), o.kind,
      case o.alert
        when 'job.dead' then 'are dead'
        when 'job.timed-out' then 'timed out'
        else 'must run alone, but ten times in a row no worker finished its other jobs in time'
      end,
      max(o.id),
      -- One that could not run alone has not failed.
      case when o.alert <> 'job.postponed' then ': ' || left(coalesce((array_agg(o.error order by o.id desc))[1], 'no error was recorded'), 1000) end),
    count(*)
  from changed o
  where o.alert is not null
  group by o.tenant, o.alert, o.kind
  order by o.tenant, o.alert, o.kind
  on conflict (tenant, code, subject) where resolved_at is null
  do update set count = a.count + excluded.count, last_at = pawl.now(), message = excluded.message
)
select o.tenant, o.id, o.fence, o.state, case when o.state = 'ready' then pawl.wake(o.queue) is null end as woke
from changed o
union all
select g.tenant, g.id, g.fence, 'ended before', null
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
