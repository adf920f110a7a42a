-- Counts a failed refresh of an entity, and makes one mark of many: of those with fewer than 1,000 positions, so that an array has an end and a full
-- one is not written again. Positions of events that retention has removed are dropped: nothing can wait for them.
-- Locks: the marks.
-- Plan: by an index of each table. With rows in them: dirty_entity, sequencer_pkey.
-- No row: somebody else refreshed it meanwhile.
with most as materialized (
  select max(m.attempts) + 1 as attempts
  from pawl.dirty m
  where m.tenant = :tenant::text
    and m.name = :name::text
    and m.generation = :generation::integer
    and m.entity = :entity::text
),
taken as (
  delete from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.entity = :entity::text
    and cardinality(d.positions) < 1000
  returning d.positions, d.parked_at
),
kept as (
  update pawl.dirty d
  set attempts = (select t.attempts from most t),
    last_error = left(:error::text, 4000)
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.entity = :entity::text
    and cardinality(d.positions) >= 1000
  returning d.position
),
numbered as (
  select u.position, row_number() over (order by u.position) as n, count(*) over () as of
  from (
    select distinct p.position
    from taken t
    cross join lateral unnest(t.positions) p(position)
  ) u
),
merged as (
  insert into pawl.dirty (tenant, name, generation, entity, position, positions, attempts, last_error, parked_at)
  select :tenant::text, :name::text, :generation::integer, :entity::text, min(n.position), array_agg(n.position order by n.position),
    (select t.attempts from most t), left(:error::text, 4000), (select min(t.parked_at) from taken t)
  from numbered n
  where n.n = n.of
    or n.position > (select s.removed_until from pawl.log_head s where s.tenant = '')
  group by (n.of - n.n) / 1000
  returning position
),
failed as (
  select k.position
  from kept k
  union all
  select m.position
  from merged m
)
select (select t.attempts from most t)::integer as attempts, max(f.position)::text as position
from failed f
having count(*) > 0
