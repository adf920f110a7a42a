-- Pauses a generation of which so many keys or entities were parked within a while, counted from when it was last resumed, with one alert.
-- Locks: its cursors' rows, by shard, SKIP LOCKED: one that is locked is paused with the next key that is parked. Then the alert's.
-- Plan: by an index of each table. With rows in them: cursor_pkey, parked_key_pkey, dirty_due.
-- No row: too few were parked, or it does not run.
with since as materialized (
  select greatest(pawl.now() - :within_ms::bigint * interval '1 millisecond', max(c.resumed_at)) as at
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
),
parked as materialized (
  select k.parked_at
  from pawl.parked_key k
  where k.tenant = :tenant::text
    and k.name = :name::text
    and k.generation = :generation::integer
    and k.parked_at > (select s.at from since s)
  union all
  select min(d.parked_at)
  from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.due_at = 'infinity'
    and d.parked_at > (select s.at from since s)
  group by d.entity
),
tripped as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.state = 'running'
    and (select count(*) from parked) >= :keys::integer
  order by c.shard
  for no key update skip locked
),
paused as (
  update pawl.cursor c
  set state = 'paused',
    reason = format('%s keys have been parked since %s, so it is paused. Fix the cause, resume it, then unpark the keys.',
      (select count(*) from parked), (select min(p.parked_at) from parked p))
  from tripped t
  where c.tenant = t.tenant
    and c.name = t.name
    and c.generation = t.generation
    and c.shard = t.shard
  returning c.tenant, c.name, c.reason
)
select p.reason, pawl.raise_alert(p.tenant, 'projection.breaker', p.name, p.reason)::text as raised
from (
  select distinct d.tenant, d.name, d.reason
  from paused d
) p
