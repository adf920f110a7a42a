-- Moves a cursor: the compare-and-set that is first in the transaction of the effects. Its row lock keeps everyone else out until that ends. A
-- process that stops in the middle must not keep the row for ever, so the server ends a transaction that idles. A generation that is not live
-- stays behind the live one: what it passed in silence before the effects of it were let out, nobody would let out after a roll-back to it.
-- Locks: the cursor's row.
-- Plan: cursor_pkey, projection_pkey.
-- No row: lost, paused, held for a comparison, at the live one's place, or moved by an operator; read-cursor tells which.
update pawl.cursor c
set position = :to_position::bigint,
  event_id = :event_id::uuid,
  log_generation = :log_generation::integer,
  crashes = 0,
  tried_at = null,
  attempts = 0,
  last_error = null,
  moved_at = pawl.now()
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
  and c.fence = :fence::bigint
  and c.position = :from_position::bigint
  and c.state = 'running'
  and (c.hold_at is null or c.hold_at >= :to_position::bigint or c.hold_until < pawl.now())
  and (
    c.effects_after is not null
    or exists (
      select
      from pawl.projection p
      join pawl.cursor l on l.tenant = p.tenant and l.name = p.name and l.generation = p.live_generation
      where p.tenant = :tenant::text
        and p.name = :name::text
        and l.shard = :shard::integer
        and greatest(l.position, l.effects_after) >= :to_position::bigint
    )
  )
returning c.effects_after::text as effects_after, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle
