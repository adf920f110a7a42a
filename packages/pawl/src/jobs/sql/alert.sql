-- name: unknown-kinds
-- Raises an alert for each kind that waits at the front of a queue although no open worker takes it from there: nobody defines it, or
-- whoever does works other queues.
-- Locks: the alert rows, by key.
-- Plan: pawl.live_workers(), worker_process_pkey, job_ready and job_suspect, the first :depth entries of each queue in turn: what nobody claims gathers
-- there. :after starts it behind entries that vacuum cannot remove yet.
-- Rows: the subjects of the alerts: the kind, with the queue if it is that which is wrong.
with taken as materialized (
  select distinct q as queue, k as kind
  from pawl.worker_process p, unnest(p.queues) q, unnest(p.kinds) k
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
),
front as materialized (
  select f.tenant, q as queue, f.kind, f.id
  from unnest(:queues::text[]) q
  cross join lateral (
    (
      select j.tenant, j.kind, j.id
      from pawl.job j
      where j.queue = q
        and j.state = 'ready'
        and not j.suspect
        and j.due > :after::timestamptz
      order by j.due, j.id
      limit :depth::integer
    )
    union all
    (
      select j.tenant, j.kind, j.id
      from pawl.job j
      where j.queue = q
        and j.state = 'ready'
        and j.suspect
        and j.due > :after::timestamptz
      order by j.due, j.id
      limit :depth::integer
    )
  ) f
  where to_timestamp((f.id >> 21) / 1000.0) < (select pawl.now()) - :age_ms::bigint * interval '1 millisecond'
),
waiting as (
  select f.tenant, f.kind, case when f.kind in (select t.kind from taken t) then f.queue end as wrong_queue, f.id
  from front f
  where (f.queue, f.kind) not in (select t.queue, t.kind from taken t)
)
insert into pawl.alert as a (tenant, code, subject, message, count)
select s.tenant, 'kind.unknown', case when s.wrong_queue is null then s.kind else format('%s in queue %s', s.kind, s.wrong_queue) end,
  case
    when s.wrong_queue is null then format('Jobs of kind %s are waiting (the oldest is %s), but no running worker defines it', s.kind, min(s.id))
    else format('Jobs of kind %s are waiting in queue %s (the oldest is %s), but the workers that define it work other queues', s.kind, s.wrong_queue, min(s.id))
  end,
  count(*)
from waiting s
group by s.tenant, s.kind, s.wrong_queue
order by s.tenant, s.kind, s.wrong_queue
on conflict (tenant, code, subject) where resolved_at is null
do update set last_at = pawl.now(), count = excluded.count, message = excluded.message
returning a.subject as kind

-- name: has-dead-alerts
-- Whether an alert about dead jobs is open.
-- Locks: none.
-- Plan: the few open alerts.
-- No row: there is none.
select 1 as is_open
from pawl.alert a
where a.resolved_at is null
  and a.code = 'job.dead'
limit 1

-- name: lock-dead-alerts
-- Locks the open alerts about dead jobs of kinds that seem to have none left. While they are locked none of them is raised again, so
-- a look in the next statement decides: resolve-dead-alerts.
-- Locks: those alert rows, SKIP LOCKED: whoever raises one just now has a dead job.
-- Plan: alert_open, job_dead.
-- Rows: the alerts.
select a.tenant, a.id
from pawl.alert a
where a.code = 'job.dead'
  and a.resolved_at is null
  and (select true from pawl.job d where d.tenant = a.tenant and d.kind = a.subject and d.state = 'dead' limit 1) is null
order by a.tenant, a.code, a.subject
limit :limit::integer
for update skip locked

-- name: resolve-alerts
-- Resolves the alert of every kind that an open worker takes again or that was not seen waiting for ten minutes, those of time-outs and of
-- jobs that could not run alone that have not come again for an hour, and those of failing statements that no process has refreshed for
-- ten minutes.
-- Locks: those alert rows.
-- Plan: the few open alerts.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.resolved_at is null
  and (
    a.code in ('job.timed-out', 'job.postponed') and a.last_at < pawl.now() - interval '1 hour'
    or a.code in ('kind.unknown', 'engine.failing') and a.last_at < pawl.now() - interval '10 minutes'
    or a.code = 'kind.unknown' and exists (
      select
      from pawl.worker_process p, unnest(p.kinds) k
      where p.tenant = ''
        and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
        and (a.subject = k or a.subject in (select format('%s in queue %s', k, q) from unnest(p.queues) q))
    )
  )

-- name: resolve-dead-alerts
-- Resolves the alerts about dead jobs that this transaction has locked, of kinds without a dead job.
-- Locks: none but what lock-dead-alerts took.
-- Plan: alert_pkey, job_dead.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
from unnest(:tenants::text[], :ids::bigint[]) as g(tenant, id)
where a.tenant = g.tenant
  and a.id = g.id
  and (select true from pawl.job d where d.tenant = a.tenant and d.kind = a.subject and d.state = 'dead' limit 1) is null

-- name: unworked-queues
-- The queues in which something is ready and that no open worker works.
-- Locks: none.
-- Plan: pawl.live_workers(), worker_process_pkey, job_ready. One entry for each queue between two that are worked: those themselves may begin with dead entries.
-- Rows: their names.
with recursive worked as materialized (
  select distinct q as queue
  from pawl.worker_process p, unnest(p.queues) q
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
),
gap as materialized (
  select g.queue as above, coalesce(lead(g.queue) over (order by g.queue), chr(1114111)) as below
  from (select '' collate "C" as queue union select k.queue collate "C" from worked k) g
),
ready as (
  select g.below, f.queue
  from gap g
  cross join lateral (
    select j.queue
    from pawl.job j
    where j.state = 'ready'
      and not j.suspect
      and j.queue > g.above
      and j.queue < g.below
    order by j.queue
    limit 1
  ) f
  union all
  select r.below, f.queue
  from ready r
  cross join lateral (
    select j.queue
    from pawl.job j
    where j.state = 'ready'
      and not j.suspect
      and j.queue > r.queue
      and j.queue < r.below
    order by j.queue
    limit 1
  ) f
)
select r.queue
from ready r
limit :limit::integer
