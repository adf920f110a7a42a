-- name: park-key
-- Parks a key: its later events wait, other keys go on. The alert of the projection is open while it has one.
-- Locks: its own new row; the cursor's is held by the transaction.
-- Plan: an insert.
-- No row is returned.
insert into pawl.parked_key as k (tenant, name, generation, shard, key_tenant, key, reason, error, attempts)
values (:tenant::text, :name::text, :generation::integer, :shard::integer, :key_tenant::text, :key::text, left(:reason::text, 2000),
  left(:error::text, 4000), :attempts::integer)
on conflict (tenant, name, generation, shard, key_tenant, key)
do update set state = 'parked', reason = excluded.reason, error = excluded.error, attempts = k.attempts + excluded.attempts, parked_at = pawl.now()

-- name: park-events
-- Adds events to parked keys, in the transaction that moves the cursor past them.
-- Locks: its own new rows, and their keys' rows against deletion.
-- Plan: an insert.
-- No row is returned.
insert into pawl.parked_event (tenant, name, generation, shard, key_tenant, key, position)
select :tenant::text, :name::text, :generation::integer, :shard::integer, u.key_tenant, u.key, u.position
from unnest(:key_tenants::text[], :keys::text[], :positions::bigint[]) as u(key_tenant, key, position)
on conflict do nothing

-- name: repark
-- Parks a key again whose replay failed, with the new error.
-- Locks: its row.
-- Plan: by an index of each table. With rows in them: parked_key_pkey.
-- No row: it is not being replayed.
update pawl.parked_key k
set state = 'parked',
  reason = left(:reason::text, 2000),
  error = left(:error::text, 4000),
  attempts = k.attempts + 1
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and k.state = 'unparking'
returning k.key

-- name: parked-keys
-- The parked keys of a cursor.
-- Locks: none.
-- Plan: parked_key_pkey.
-- No row: none is parked.
select k.key_tenant as tenant, k.key
from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer

-- name: parked-among
-- Which of these keys are parked. Asked after the cursor's row is locked, so that it stays true until the transaction ends.
-- Locks: none.
-- Plan: parked_key_pkey.
-- Rows: the parked ones.
select k.key_tenant as tenant, k.key
from (
  select distinct u.key_tenant, u.key
  from unnest(:key_tenants::text[], :keys::text[]) as u(key_tenant, key)
) u
join pawl.parked_key k on k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = u.key_tenant
  and k.key = u.key

-- name: has-parked
-- Whether a cursor has parked keys at all. Only its holder parks, so a holder that finds none need not ask again.
-- Locks: none.
-- Plan: parked_key_pkey.
-- No row: none.
select 1 as has_parked
from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
limit 1

-- name: list-parked
-- A page of parked keys and entities of a projection or sink, oldest first, each with its waiting events and the `after` of the next page.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, parked_event_pkey, dirty_due.
-- No row: none is parked after it.
with listed as (
  select k.generation, k.shard, k.key_tenant, k.key, k.state, k.reason, k.error, k.attempts, k.parked_at, e.events, e.first_position
  from pawl.parked_key k
  cross join lateral (
    select count(*)::integer as events, min(p.position) as first_position
    from pawl.parked_event p
    where p.tenant = k.tenant
      and p.name = k.name
      and p.generation = k.generation
      and p.shard = k.shard
      and p.key_tenant = k.key_tenant
      and p.key = k.key
  ) e
  where k.tenant = :tenant::text
    and k.name = :name::text
  union all
  select d.generation, 0, '', d.entity, 'parked', max(d.reason), max(d.last_error), max(d.attempts), min(d.parked_at),
    sum(cardinality(array_remove(d.positions, 0)))::integer, nullif(min(d.position), 0)
  from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.due_at = 'infinity'
  group by d.generation, d.entity
)
select l.generation, l.shard, l.key_tenant, l.key, l.state, l.reason, l.error, l.attempts, l.parked_at, l.events, l.first_position::text as first_position,
  jsonb_build_array(a.at, l.key, l.key_tenant, l.generation, l.shard)::text as next
from listed l
cross join lateral (select coalesce(l.parked_at, 'infinity') as at) a
where :after::jsonb is null
  or (a.at, l.key, l.key_tenant, l.generation, l.shard)
    > ((:after::jsonb ->> 0)::timestamptz, :after::jsonb ->> 1, :after::jsonb ->> 2, (:after::jsonb ->> 3)::integer, (:after::jsonb ->> 4)::integer)
order by a.at, l.key, l.key_tenant, l.generation, l.shard
limit :limit::integer

-- name: next-unparking
-- The next event of each key that is to be replayed.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: parked_key_unparking, parked_event_pkey.
-- No row: nothing is to be replayed. A null position: the key has no event left.
select k.key_tenant as tenant, k.key, e.position::text as position
from pawl.parked_key k
left join lateral (
  select p.position
  from pawl.parked_event p
  where p.tenant = k.tenant
    and p.name = k.name
    and p.generation = k.generation
    and p.shard = k.shard
    and p.key_tenant = k.key_tenant
    and p.key = k.key
  order by p.position
  limit 1
) e on true
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.state = 'unparking'
limit 100

-- name: take-parked-event
-- Takes a parked event off its key, in the transaction of its effects.
-- Locks: its row; the cursor's is held by the transaction.
-- Plan: by an index of each table. With rows in them: parked_event_pkey.
-- No row: it was skipped by an operator.
delete from pawl.parked_event e
where e.tenant = :tenant::text
  and e.name = :name::text
  and e.generation = :generation::integer
  and e.shard = :shard::integer
  and e.key_tenant = :key_tenant::text
  and e.key = :key::text
  and e.position = :position::bigint
returning e.position

-- name: try-parked
-- Notes that the next event of a parked key is about to be replayed. If the process that tried it before has died, that is one crash more.
-- Locks: the key's row.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, cursor_pkey, worker_pkey.
-- No row: lost, or no longer to be replayed; the write that follows tells.
update pawl.parked_key k
set tried_at = :position::bigint,
  tried_by = :worker::integer,
  crashes = case
    when k.tried_at is distinct from :position::bigint then 0
    when exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.id = k.tried_by
        and w.id <> :worker::integer
        and w.close_reason is distinct from 'stopped'
        and w.closed_at is not null
    ) then k.crashes + 1
    else k.crashes
  end
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and k.state = 'unparking'
  and exists (
    select
    from pawl.cursor c
    where c.tenant = k.tenant
      and c.name = k.name
      and c.generation = k.generation
      and c.shard = k.shard
      and c.fence = :fence::bigint
  )
returning k.crashes

-- name: unpark
-- Asks the holder to replay a parked key, or all of them; a state projection's entities become due again.
-- Locks: the keys' rows, the entities' marks.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, dirty_due.
-- Rows: the keys.
with keys as (
  update pawl.parked_key k
  set state = 'unparking',
    tried_at = null,
    crashes = 0
  where k.tenant = :tenant::text
    and k.name = :name::text
    and k.state = 'parked'
    and (:key::text is null or (k.key = :key::text and (:key_tenant::text is null or k.key_tenant = :key_tenant::text)))
  returning k.key
),
entities as (
  update pawl.dirty d
  set due_at = pawl.now(),
    attempts = 0,
    parked_at = null
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.due_at = 'infinity'
    and (:key::text is null or d.entity = :key::text)
  returning d.entity
)
select k.key
from keys k
union
select e.entity
from entities e

-- name: unpark-key
-- Frees a key whose last parked event was taken. A transaction that adds events to the key locks the cursor's row first, as this one does.
-- Locks: its row; the cursor's is held by the transaction.
-- Plan: parked_key_pkey, parked_event_pkey.
-- No row: events are left, or an operator parked it again.
delete from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and not exists (
    select
    from pawl.parked_event e
    where e.tenant = k.tenant
      and e.name = k.name
      and e.generation = k.generation
      and e.shard = k.shard
      and e.key_tenant = k.key_tenant
      and e.key = k.key
  )
returning k.key

-- name: skip-parked
-- Takes a parked event away without applying it.
-- Locks: its cursor's row, as everyone does who adds or takes events of a parked key; then its own.
-- Plan: by an index of each table. With rows in them: cursor_pkey, parked_event_position.
-- No row: no such event is parked.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
  order by c.generation, c.shard
  for no key update
)
delete from pawl.parked_event e
using held h
where e.tenant = h.tenant
  and e.name = h.name
  and e.generation = h.generation
  and e.shard = h.shard
  and e.position = :position::bigint
returning e.generation, e.shard, e.key_tenant, e.key

-- name: note-skipped
-- Remembers that an event was skipped, for generations that are still to come to it, and forgets those whose events are gone.
-- Locks: its own new row, and the projection's row against deletion.
-- Plan: an insert, skipped_event_pkey, sequencer_pkey.
-- No row is returned.
with gone as (
  delete from pawl.skipped_event e
  where e.tenant = :tenant::text
    and e.name = :name::text
    and e.position <= (select s.removed_until from pawl.log_head s where s.tenant = '')
)
insert into pawl.skipped_event (tenant, name, position, event_id)
values (:tenant::text, :name::text, :position::bigint, :event_id::uuid)
on conflict (tenant, name, position) do update set event_id = excluded.event_id

-- name: skipped-among
-- The events of a range that an operator has skipped. Read after the cursor's row is locked, as a skip locks it.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: skipped_event_pkey.
-- Rows: the skipped ones.
select e.event_id::text as event_id
from pawl.skipped_event e
where e.tenant = :tenant::text
  and e.name = :name::text
  and e.position between :from_position::bigint and :to_position::bigint
