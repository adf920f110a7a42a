-- Moves a cursor: the compare-and-set that is first in the transaction of the effects. The lock of its row keeps everyone else out until that ends. A
-- process that stops in the middle must not keep the row for ever, so the server ends a transaction that idles. A generation that is not live
-- stays behind the live one: what it passed in silence before the effects of it were let out, nobody would let out after a roll-back to it.
-- Locks: the cursor's row, then that of its position.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- No row: lost, paused, held for a comparison, at the live one's place, or moved by an operator; read-cursor tells which.
with held as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.effects_after
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = :shard::integer
    and c.fence = :fence::bigint
    and c.state = 'running'
    and (c.hold_at is null or c.hold_at >= :to_position::bigint or c.hold_until < pawl.now())
    and (
      c.effects_after is not null
      or exists (
        select
        from pawl.projection p
        join pawl.cursor_at l on l.tenant = p.tenant and l.name = p.name and l.generation = p.live_generation
        where p.tenant = :tenant::text
          and p.name = :name::text
          and l.shard = :shard::integer
          and greatest(l.position, l.effects_after) >= :to_position::bigint
      )
    )
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
returning h.effects_after::text as effects_after, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle
