-- Raises an alert for each kind that waits at the front of a queue although no open worker defines it.
-- Locks: the alert rows, by key.
-- Plan: job_ready, the first :depth entries of each queue in turn: what nobody claims gathers there.
-- Rows: the kinds.
with open_kinds as materialized (
  select distinct k as kind
  from pawl.worker w, unnest(w.kinds) k
  where w.tenant = ''
    and w.closed_at is null
),
front as materialized (
  select f.tenant, f.kind, f.id
  from unnest(:queues::text[]) q
  cross join lateral (
    select j.tenant, j.kind, j.id
    from pawl.job j
    where j.queue = q
      and j.state = 'ready'
      and not j.suspect
    order by j.due, j.id
    limit :depth::integer
  ) f
  where to_timestamp((f.id >> 21) / 1000.0) < (select pawl.now()) - :age_ms::bigint * interval '1 millisecond'
)
insert into pawl.alert as a (tenant, code, subject, message, count)
select f.tenant, 'kind.unknown', f.kind, format('Jobs of kind %s wait, the oldest is %s, and no running worker defines it', f.kind, min(f.id)), count(*)
from front f
where f.kind not in (select o.kind from open_kinds o)
group by f.tenant, f.kind
order by f.tenant, f.kind
on conflict (tenant, code, subject) where resolved_at is null
do update set last_at = pawl.now(), count = excluded.count, message = excluded.message
returning a.subject as kind
