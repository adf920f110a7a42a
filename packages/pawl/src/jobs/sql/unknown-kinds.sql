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
