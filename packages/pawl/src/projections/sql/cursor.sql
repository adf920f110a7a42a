-- name: await-cursor
-- Waits until every transaction that was moving a cursor has ended: after a commit without an answer, read-cursor then shows its outcome.
-- Locks: its row, for the moment.
-- Plan: cursor_pkey.
-- No row: its generation is gone.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
for no key update

-- name: lock-stopped
-- Locks the cursors that do not run. In a statement of its own: a sink that is paused still stores what it had begun, and a resume reads
-- the position after that.
-- Locks: their rows, by generation and shard.
-- Plan: cursor_pkey.
-- No row: none is paused, stale or latched.
select c.shard
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
  and c.state <> 'running'
order by c.generation, c.shard
for no key update

-- name: acquire
-- Takes cursors whose holder is closed or that have none, each under a new fence. Writes of the former holder are refused from now on. One that this process took
-- without getting the answer is among them: its fence is none that the process knows. A process that died had many cursors: the first crash makes
-- the next holder careful, and only those count on that end while the next event is tried alone. Where there is nothing to do none does.
-- Locks: their rows and those of their positions, SKIP LOCKED: one whose former holder still has a transaction open, or has moved it since this
-- statement began, is taken at a later poll.
-- Plan: by an index of each table. With rows in them: cursor_pkey, cursor_position_pkey, worker_pkey, sequencer_pkey, parked_key_unparking,
-- skipped_event_pkey.
-- Rows: the cursors that were taken.
with free as materialized (
  select c.tenant, c.name, c.generation, c.shard, p.n,
    exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.id = c.holder
        and w.id <> :worker::integer
        and w.close_reason is distinct from 'stopped'
    )
    and (p.crashes = 0 or p.tried_at is not distinct from p.position)
    and (
      p.position < (select s.position from pawl.log_head s where s.tenant = '')
      or exists (
        select
        from pawl.parked_key k
        where k.tenant = c.tenant
          and k.name = c.name
          and k.generation = c.generation
          and k.shard = c.shard
          and k.state = 'unparking'
      )
    ) as is_crash
  from pawl.cursor c
  join pawl.cursor_position p on p.tenant = c.tenant
    and p.name = c.name
    and p.generation = c.generation
    and p.shard = c.shard
    and p.n = (
      select max(m.n)
      from pawl.cursor_position m
      where m.tenant = c.tenant
        and m.name = c.name
        and m.generation = c.generation
        and m.shard = c.shard
    )
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.state = 'running'
    and (
      (c.holder = :worker::integer and c.fence <> all (:fences::bigint[]))
      or not exists (
        select
        from pawl.worker w
        where w.tenant = ''
          and w.id = c.holder
          and w.closed_at is null
      )
    )
    and exists (
      select
      from pawl.worker m
      where m.tenant = ''
        and m.id = :worker::integer
        and m.nonce = :nonce::uuid
        and m.closed_at is null
    )
  order by c.shard
  limit :limit::integer
  for update of c, p skip locked
),
taken as (
  update pawl.cursor c
  set holder = :worker::integer,
    fence = pawl.next_fence()
  from free f
  where c.tenant = f.tenant
    and c.name = f.name
    and c.generation = f.generation
    and c.shard = f.shard
  returning c.shard, c.shards, c.fence, c.is_live
),
counted as (
  update pawl.cursor_position p
  set crashes = p.crashes + f.is_crash::integer
  from free f
  where p.tenant = f.tenant
    and p.name = f.name
    and p.generation = f.generation
    and p.shard = f.shard
    and p.n = f.n
  returning p.shard, p.position, p.event_id, p.log_generation, p.done, p.crashes, p.tried_at
)
select t.shard, t.shards, t.fence::text as fence, p.position::text as position, p.event_id::text as event_id, p.log_generation,
  p.done::text as done, t.is_live, p.crashes, p.tried_at is not distinct from p.position as is_tried,
  coalesce((select max(e.position) from pawl.skipped_event e where e.tenant = :tenant::text and e.name = :name::text), 0)::text as skipped_to
from taken t
join counted p on p.shard = t.shard

-- name: release
-- Gives a cursor back in order, and notifies the others, so that another process takes it.
-- Locks: its row; SKIP LOCKED unless it waits: jobs are claimed on the same connection. One that is locked is a stray until the next poll.
-- Plan: cursor_pkey.
-- No row: it was taken over before, or is locked.
with unlocked as materialized (
  select c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update skip locked
)
update pawl.cursor c
set holder = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and (:waits::boolean or exists (select from unlocked))
returning c.shard, pg_notify('pawl_workers', '') is null as told

-- name: release-strays
-- Gives back cursors that this process took and does not run: the answer to their taking or to their release was lost, or they were locked. Another
-- may want them.
-- Locks: their rows, SKIP LOCKED.
-- Plan: cursor_pkey, worker_pkey.
-- Rows: the cursors that were given back.
with strays as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.holder = :worker::integer
    and c.fence <> all (:fences::bigint[])
    and exists (
      select
      from pawl.worker m
      where m.tenant = ''
        and m.id = :worker::integer
        and m.nonce = :nonce::uuid
        and m.closed_at is null
    )
  for no key update of c skip locked
)
update pawl.cursor c
set holder = null
from strays s
where c.tenant = s.tenant
  and c.name = s.name
  and c.generation = s.generation
  and c.shard = s.shard
  and c.holder = :worker::integer
  and c.fence <> all (:fences::bigint[])
returning c.shard, pg_notify('pawl_workers', '') is null as told

-- name: survey
-- What of this process's definitions is held here, what is free, and how many living processes share it. A cursor that this process took without
-- getting the answer has a fence that it does not know: it is free, and not held here.
-- Locks: none.
-- Plan: cursor_pkey, pawl.live_workers(), worker_process_pkey.
-- Rows: one per definition that has cursors.
with open as materialized (
  select p.id, p.kinds
  from pawl.worker_process p
  where p.tenant = ''
    and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
)
select d.n::integer as definition,
  count(*)::integer as shards,
  count(*) filter (where c.holder = :worker::integer and c.fence = any (:fences::bigint[]))::integer as mine,
  count(*) filter (
    where c.state = 'running'
      and (w.id is null or (c.holder = :worker::integer and c.fence <> all (:fences::bigint[])))
  )::integer as free,
  (
    select count(*)::integer
    from open p
    where p.kinds @> array[d.kind]
  ) as peers
from unnest(:tenants::text[], :names::text[], :generations::integer[], :kinds::text[]) with ordinality as d(tenant, name, generation, kind, n)
join pawl.cursor c on c.tenant = d.tenant and c.name = d.name and c.generation = d.generation
left join open w on w.id = c.holder
group by d.n, d.kind

-- name: cursors
-- The cursors of one generation, or of the live one.
-- Locks: none.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- No row: there is no such generation.
select c.generation, c.shard, c.shards, c.kind, c.channel, c.state, c.position::text as position, c.event_id::text as event_id
from pawl.projection p
join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name and c.generation = coalesce(:generation::integer, p.live_generation)
where p.tenant = :tenant::text
  and p.name = :name::text
order by c.shard

-- name: read-cursor
-- A cursor as it is, and the last event that a person has skipped for it.
-- Locks: none.
-- Plan: by an index of each table. With rows in them: cursor_pkey, cursor_position_pkey, skipped_event_pkey.
-- No row: its generation is gone.
select c.fence::text as fence, c.position::text as position, c.event_id::text as event_id, c.log_generation, c.done::text as done,
  c.is_live, c.state,
  case when c.hold_until >= pawl.now() then c.hold_at::text end as hold_at,
  coalesce((select max(e.position) from pawl.skipped_event e where e.tenant = :tenant::text and e.name = :name::text), 0)::text as skipped_to
from pawl.cursor_at c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer

-- name: cursor-state
-- The state and position of a cursor: read by sinks before calls begin, and at intervals by idle loops.
-- Locks: none.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: it is no longer held under this fence.
select c.state, c.position::text as position
from pawl.cursor_at c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint

-- name: configure
-- Brings what a definition may change at any time up to date.
-- Locks: rows that differ.
-- Plan: cursor_pkey.
-- No row: they agree.
update pawl.cursor c
set max_lag = :max_lag_ms::bigint * interval '1 millisecond'
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.max_lag is distinct from :max_lag_ms::bigint * interval '1 millisecond'
returning c.shard

-- name: move
-- Moves a cursor: the compare-and-set that is first in the transaction of the effects. The lock of its row keeps everyone else out until that ends. A
-- process that stops in the middle must not keep the row forever, so the server ends a transaction that idles. `fold` is the name of a projection,
-- through whose transaction no event and no job is added.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, paused, held for a comparison, or moved by an operator; read-cursor tells which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.is_live
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
    and c.state = 'running'
    and (c.hold_at is null or c.hold_at >= :to_position::bigint or c.hold_until < pawl.now())
  for no key update
)
update pawl.cursor_position p
set n = p.n + 1,
  position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  crashes = 0,
  tried_at = null,
  attempts = 0,
  last_error = null,
  moved_at = pawl.now()
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning h.is_live, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle, set_config('pawl.fold', :fold::text, true) as fold

-- name: stay
-- Holds a cursor for a transaction that does not move it: the replay of a parked event.
-- Locks: the cursor's row.
-- Plan: cursor_pkey.
-- No row: lost, paused, or held for a comparison; read-cursor tells which.
select c.is_live, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle, set_config('pawl.fold', :fold::text, true) as fold
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.state = 'running'
  and (c.hold_at is null or c.hold_until < pawl.now())
for no key update

-- name: flush
-- Stores what a sink has finished: its position, and the ranges above it; and the failure that will be retried, if any. Also while it
-- is paused: calls that had started still end.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, or moved by an operator; read-cursor tells which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.state
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update
)
update pawl.cursor_position p
set n = p.n + 1,
  position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  done = :done::int8multirange,
  crashes = 0,
  tried_at = null,
  attempts = :attempts::integer,
  last_error = left(:error::text, 4000),
  moved_at = pawl.now()
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning h.state

-- name: fail
-- Counts a failed attempt at the event after the position, so that another holder goes on counting. A sink counts itself, and passes its attempts.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, or moved by an operator.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update
)
update pawl.cursor_position p
set attempts = coalesce(:attempts::integer, p.attempts + 1),
  last_error = left(:error::text, 4000)
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning p.attempts

-- name: try-alone
-- Notes, after a crash, that the next event is about to be tried, alone: if this holder dies too, that is held against the event.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, or moved since; the next write shows which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
  for no key update
)
update pawl.cursor_position p
set tried_at = p.position
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning p.shard

-- name: latch
-- Stops a cursor whose log is not the one that it read. Its alert is open while it is latched. Retention still waits for its position.
-- Locks: the cursor's row.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: lost, stopped already, or at another position than the one that was compared with the log.
update pawl.cursor c
set state = 'latched',
  reason = left(:reason::text, 2000),
  stopped_at = pawl.now()
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.state = 'running'
  and exists (
    select
    from pawl.cursor_at a
    where a.tenant = :tenant::text
      and a.name = :name::text
      and a.generation = :generation::integer
      and a.shard = :shard::integer
      and a.position = :position::bigint
  )
returning c.shard

-- name: mark-stale
-- Makes cursors stale whose lag exceeds their limit. They no longer prevent the removal of events.
-- Locks: their rows and those of their positions, SKIP LOCKED: one that has moved since the statement began does not lag.
-- Plan: the few rows of cursors, cursor_position_pkey, log_page_pkey.
-- Rows: the cursors that became stale.
with behind as materialized (
  select c.tenant, c.name, c.generation, c.shard, n.position
  from pawl.cursor c
  join pawl.cursor_position n on n.tenant = c.tenant
    and n.name = c.name
    and n.generation = c.generation
    and n.shard = c.shard
    and n.n = (
      select max(m.n)
      from pawl.cursor_position m
      where m.tenant = c.tenant
        and m.name = c.name
        and m.generation = c.generation
        and m.shard = c.shard
    )
  where c.max_lag is not null
    and c.state in ('running', 'paused')
    and (
      select p.to_at
      from pawl.log_page p
      where p.tenant = ''
        and p.last_position > n.position
      order by p.last_position
      limit 1
    ) < pawl.now() - c.max_lag
  order by c.tenant, c.name, c.generation, c.shard
  for no key update of c, n skip locked
)
update pawl.cursor c
set state = 'stale',
  reason = format('It was more than %s behind at position %s.', c.max_lag, b.position),
  stopped_at = pawl.now()
from behind b
where c.tenant = b.tenant
  and c.name = b.name
  and c.generation = b.generation
  and c.shard = b.shard
returning c.name, c.generation, c.shard

-- name: pause
-- Stops a projection or sink. Waits for a transaction that is moving it; none moves it afterwards. For refreshes in progress there is
-- await-refreshes: to wait for them here, while others still begin, might have no end.
-- Locks: its cursors' rows, by shard.
-- Plan: cursor_pkey.
-- No row: it does not exist, or does not run.
update pawl.cursor c
set state = 'paused',
  reason = left(:reason::text, 2000),
  stopped_at = pawl.now()
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
  and c.state = 'running'
returning c.shard

-- name: resume
-- Lets a projection or sink go on that was paused, stale or latched, from where a person says, or from its place. After a latch the
-- place is one in the log as it is now: never beyond its end, whatever event is there.
-- Locks: its cursors' rows, which the transaction holds, and those of their positions.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: it does not exist, or runs already.
with stood as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.state, c.n
  from pawl.cursor_at c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and (:generation::integer is null or c.generation = :generation::integer)
    and c.state <> 'running'
),
resumed as (
  update pawl.cursor c
  set state = 'running',
    reason = null,
    stopped_at = null,
    is_tripped = false,
    resumed_at = pawl.now()
  from stood s
  where c.tenant = s.tenant
    and c.name = s.name
    and c.generation = s.generation
    and c.shard = s.shard
)
update pawl.cursor_position p
set n = p.n + 1,
  position = coalesce(:from_position::bigint, case when s.state = 'latched' then least(p.position, :head::bigint) else p.position end),
  event_id = case when s.state <> 'latched' and :from_position::bigint is null then p.event_id end,
  log_generation = case when s.state <> 'latched' and :from_position::bigint is null then p.log_generation end,
  done = case when :from_position::bigint is not null or (s.state = 'latched' and p.position > :head::bigint) then '{}' else p.done end,
  attempts = 0,
  crashes = 0,
  tried_at = null,
  last_error = null
from stood s
where p.tenant = s.tenant
  and p.name = s.name
  and p.generation = s.generation
  and p.shard = s.shard
  and p.n = s.n
returning p.shard, p.position::text as position

-- name: skip-next
-- Moves a cursor past one event without applying it. Its holder finds it at another position and goes on from there.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey.
-- No row: the cursor has moved since.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
  for no key update
)
update pawl.cursor_position p
set n = p.n + 1,
  position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  attempts = 0,
  crashes = 0,
  tried_at = null,
  last_error = null,
  moved_at = pawl.now()
from held h
where p.tenant = h.tenant
  and p.name = h.name
  and p.generation = h.generation
  and p.shard = h.shard
  and p.n = (
    select max(m.n)
    from pawl.cursor_position m
    where m.tenant = :tenant::text
      and m.name = :name::text
      and m.generation = :generation::integer
      and m.shard = :shard::integer
  )
  and p.position = :from_position::bigint
returning p.shard

-- name: trip-breaker
-- Pauses a generation of which :keys keys or entities were parked within :within_ms, counted from its last resume.
-- Locks: its cursors' rows, by shard, SKIP LOCKED: one that is locked is paused with the next key that is parked.
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
)
update pawl.cursor c
set state = 'paused',
  is_tripped = true,
  stopped_at = pawl.now(),
  reason = format('%s keys have been parked since %s, so it is paused. Fix the cause, resume it, then unpark the keys.',
    (select count(*) from parked), (select min(p.parked_at) from parked p))
from tripped t
where c.tenant = t.tenant
  and c.name = t.name
  and c.generation = t.generation
  and c.shard = t.shard
returning c.reason

-- name: seen
-- Whether the live generation has applied every event of a transaction.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey, event_xid, sequencer_pkey, log_page_pkey from its end. Pages are read only for an event that has its
-- position: for one that has none yet, which is the rule right after a commit, they would be read to their beginning.
-- One row: what is to be waited for; or no row: there is no such projection.
with live as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.shards, c.kind, c.channel, c.position, c.done, c.state, c.holder
  from pawl.projection p
  join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name and c.generation = p.live_generation
  where p.tenant = :tenant::text
    and p.name = :name::text
),
written as materialized (
  select e.seq, e.created_at, e.aggregateid, e.tenant as key_tenant, l.generation, l.shard, l.kind, l.position as reached, l.done,
    pg_visible_in_snapshot(e.xid, s.snapshot) as has_position
  from pawl.event e
  join pawl.log_head s on s.tenant = ''
  join live l on l.shard = ((pawl.event_bucket(e.tenant, e.aggregateid) + 1) * l.shards - 1) / 1024
    and (l.channel is null or l.channel = e.channel)
    and (l.tenant = '' or l.tenant = e.tenant)
  where e.xid = :xid::xid8
),
placed as materialized (
  select w.generation, w.shard, w.key_tenant, w.aggregateid, w.kind, w.reached, w.done, p.position
  from written w
  left join lateral (
    select p.first_position + u.n - 1 as position
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    where w.has_position
      and p.tenant = ''
      and p.from_at <= w.created_at
      and p.to_at >= w.created_at
      and u.xid = :xid::xid8
      and u.seq = w.seq
    order by p.last_position desc
    limit 1
  ) p on true
)
select
  (select string_agg(distinct l.state, ', ') from live l) as states,
  exists (
    select
    from live l
    where not exists (select from pawl.worker w where w.tenant = '' and w.id = l.holder and w.closed_at is null)
  ) as is_unheld,
  -- As of the snapshot that the counts below are of: a commit since then has its status at once, and its events are not counted here.
  case when pg_visible_in_snapshot(:xid::xid8, pg_current_snapshot()) then pg_xact_status(:xid::xid8) else 'in progress' end as status,
  count(*)::integer as events,
  count(*) filter (where p.position is null or (p.position > p.reached and not p.done @> p.position))::integer as unapplied,
  count(*) filter (
    where exists (
      select
      from pawl.parked_event e
      where e.tenant = :tenant::text
        and e.name = :name::text
        and e.generation = p.generation
        and e.shard = p.shard
        and e.key_tenant = p.key_tenant
        and e.key = p.aggregateid
        and e.position = p.position
    )
      or exists (
        select
        from pawl.dirty d
        where d.tenant = :tenant::text
          and d.name = :name::text
          and d.generation = p.generation
          and d.due_at = 'infinity'
          and p.position = any (d.positions)
      )
  )::integer as parked,
  count(*) filter (
    where p.kind = 'state'
      and exists (
        select
        from pawl.dirty d
        where d.tenant = :tenant::text
          and d.name = :name::text
          and d.generation = p.generation
          and p.position = any (d.positions)
      )
  )::integer as dirty
from placed p
having exists (select from live)

-- name: status
-- How every projection and sink is. Events that have no position yet, because no runner gives them one, are part of its lag; of those at
-- most 10,000 are counted.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey, event_xid.
-- Rows: one per cursor.
with head as materialized (
  select s.position, s.rebased_seq, pg_snapshot_xmax(s.snapshot) as xmax, array(select pg_snapshot_xip(s.snapshot)) as xip
  from pawl.log_head s
  where s.tenant = ''
),
waiting as materialized (
  select count(*) as events
  from (
    select
    from head h
    join pawl.event e on e.xid >= h.xmax and e.seq > h.rebased_seq
    union all
    select
    from head h
    join pawl.event e on e.xid = any (h.xip) and e.seq > h.rebased_seq
    limit 10000
  ) unplaced
)
select c.tenant, c.name, c.kind, c.generation, p.live_generation = c.generation as is_live, c.shard, c.shards, c.state, c.reason,
  c.position::text as position, (greatest(0, s.position - c.position) + u.events)::text as lag, w.id as holder, c.attempts, c.last_error, c.moved_at,
  (
    select count(*)::integer
    from pawl.parked_key k
    where k.tenant = c.tenant
      and k.name = c.name
      and k.generation = c.generation
      and k.shard = c.shard
  ) as parked_keys,
  case
    when c.kind = 'state' and c.shard = 0 then (
      select count(distinct d.entity)::integer
      from pawl.dirty d
      where d.tenant = c.tenant
        and d.name = c.name
        and d.generation = c.generation
    )
    else 0
  end as dirty
from pawl.projection p
join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name
cross join head s
cross join waiting u
left join pawl.worker w on w.tenant = '' and w.id = c.holder and w.closed_at is null
where p.tenant = :tenant::text
  and (:name::text is null or p.name = :name::text)
order by c.name, c.generation, c.shard

-- name: log-bounds
-- Which part of the log is kept: the position before its first, and its last; and its generation.
-- Locks: none.
-- Plan: sequencer_pkey.
-- One row.
select s.removed_until::text as before, s.position::text as head, s.generation
from pawl.log_head s
where s.tenant = ''

-- name: defining-runners
-- Living processes whose code defines a projection or sink, whichever generation of it.
-- Locks: none.
-- Plan: pawl.live_workers(), worker_process_pkey.
-- No row: none does.
select p.id, p.name
from pawl.worker_process p
where p.tenant = ''
  and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
  and exists (
    select
    from unnest(p.kinds) k(kind)
    where starts_with(k.kind, :prefix::text)
      and substr(k.kind, length(:prefix::text) + 1) ~ '^[0-9]+$'
  )
order by p.id
limit 5
