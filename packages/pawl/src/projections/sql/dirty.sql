-- name: feed-dirty
-- Notes entities that changed, in the transaction that moves the cursor. Rows are only added, so it waits for no refresh.
-- Locks: none but its own new rows.
-- Plan: an insert.
-- No row is returned.
insert into pawl.dirty (tenant, name, generation, entity, position, positions, due_at)
select :tenant::text, :name::text, :generation::integer, u.entity, min(u.position), array_agg(distinct u.position),
  pawl.now() + :delay_ms::bigint * interval '1 millisecond'
from unnest(:entities::text[], :positions::bigint[]) as u(entity, position)
group by u.entity
order by 5

-- name: take-dirty
-- Takes one entity that is due and that no other transaction refreshes. The lock ends with the transaction; it is tried, never waited for.
-- Locks: the entity's advisory lock, and the cursor's row against a switch of generations, which would rename the tables.
-- Plan: dirty_due, cursor_pkey.
-- One row: without an entity if nothing is due among the oldest marks, or others are at them; `marks` says how many were looked at. No row: it is
-- paused, or about to be switched.
with live as materialized (
  select c.is_live
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = 0
    and c.state <> 'paused'
    and (c.hold_at is distinct from 0 or c.hold_until < pawl.now())
  for key share
),
due as materialized (
  select d.entity
  from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.due_at <= pawl.now()
  order by d.due_at, d.id
  limit :marks::integer
),
candidate as materialized (
  select distinct d.entity
  from due d
)
select t.entity, l.is_live, (select count(*)::integer from due) as marks,
  set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle, set_config('pawl.fold', :fold::text, true) as fold
from live l
left join lateral (
  select k.entity
  from candidate k
  where pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(:tenant::text, :name::text, :generation::integer, k.entity)::text, 0))
  limit 1
) t on true

-- name: take-all-dirty
-- Makes this transaction the one refresher of a generation. The lock ends with the transaction; it is tried, never waited for. Beside that what read-log
-- needs to pass over its events: null without a flush at its commit, since after a crash of the server another transaction may get the id.
-- Locks: the generation's advisory lock, and the cursor's row against a switch of generations, which would rename the tables.
-- Plan: cursor_pkey, sequencer_pkey.
-- No row: another transaction refreshes, or it is paused, or about to be switched.
with live as materialized (
  select c.is_live
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = 0
    and c.state <> 'paused'
    and (c.hold_at is distinct from 0 or c.hold_until < pawl.now())
  for key share
)
select l.is_live, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle, set_config('pawl.fold', :fold::text, true) as fold,
  h.generation || '/' || extract(epoch from pg_postmaster_start_time()) as era, h.position::text as head, h.xid
from live l
left join lateral (
  select s.generation, s.position, pg_current_xact_id()::text as xid
  from pawl.log_head s
  where s.tenant = ''
    and current_setting('synchronous_commit') <> 'off'
) h on true
where pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(:tenant::text, :name::text, :generation::integer)::text, 0))

-- name: next-due
-- When the first entity is due. Asked before a transaction begins: to take one locks the cursor's row, which costs a transaction id.
-- Locks: none.
-- Plan: dirty_due.
-- One row, the milliseconds until then, at most an hour; no row: there is none.
select ceil(extract(epoch from least(d.due_at, pawl.now() + interval '1 hour') - pawl.now()) * 1000)::integer as due_in_ms
from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
order by d.due_at, d.id
limit 1

-- name: clear-dirty
-- Takes away the marks of an entity that are visible now, if one of them is due still. What the refresh reads next is at least as new as their
-- events.
-- Locks: the marks; the entity's advisory lock is held by the transaction.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row: another transaction refreshed or delayed it just before.
delete from pawl.dirty d
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
  and d.entity = :entity::text
  and exists (
    select from pawl.dirty m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.entity = :entity::text
      and m.due_at <= pawl.now()
  )
returning d.position

-- name: clear-due
-- Takes away the marks of entities that are due, all that are visible now. Its snapshot is younger than the generation's lock, so that it does not
-- see marks that the refresher before has taken.
-- Locks: the marks; the generation's advisory lock is held by the transaction.
-- Plan: dirty_due, dirty_entity.
-- Rows: the entities, at most as many as the limit. No row: nothing is due.
with due as materialized (
  select d.entity
  from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.due_at <= pawl.now()
  order by d.due_at, d.id
  limit :limit::integer
),
cleared as (
  delete from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.entity = any (array(select u.entity from due u))
  returning d.entity
)
select distinct c.entity
from cleared c
order by c.entity

-- name: delay-dirty
-- Puts a refresh off: for a while, or, without a delay, until a person or the next change of the entity asks for it.
-- Locks: the marks.
-- Plan: by an index of each table. With rows in them: dirty_entity.
-- No row is returned.
update pawl.dirty d
set due_at = case when :delay_ms::bigint is null then 'infinity' else pawl.now() + :delay_ms::bigint * interval '1 millisecond' end,
  parked_at = case when :delay_ms::bigint is null then coalesce(d.parked_at, pawl.now()) end,
  reason = case when :delay_ms::bigint is null then left(:reason::text, 2000) end
where d.tenant = :tenant::text
  and d.name = :name::text
  and d.generation = :generation::integer
  and d.entity = :entity::text

-- name: fail-dirty
-- Counts a failed refresh of an entity, and makes one mark of many: of those with fewer than 1,000 positions, so that an array has an end and a full
-- one is not written again. Positions of events that retention has removed are dropped: nothing can wait for them.
-- Locks: the marks.
-- Plan: by an index of each table. With rows in them: dirty_entity, sequencer_pkey.
-- No row: another transaction refreshed it.
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

-- name: await-refreshes
-- Waits until every refresh that took its entity before a pause has ended. The pause is committed, so none begins during the wait.
-- Locks: the cursors' rows, by generation and shard, for the moment.
-- Plan: cursor_pkey.
-- Rows: the cursors.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
order by c.generation, c.shard
for update
