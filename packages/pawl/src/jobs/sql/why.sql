-- What decides whether a job runs: its own state, who works its queue and kind, and how many are ahead (at most 1000 are counted).
-- Locks: none.
-- Plan: job_pkey, job_history_id, job_ready. Suspects are few, whichever index finds the one that runs.
-- No row: there is no such job for this tenant; or it finished before :since, as in get.sql.
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
