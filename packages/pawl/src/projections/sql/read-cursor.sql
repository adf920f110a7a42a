-- A cursor as it is. `live_at` is where a generation that is not live stands still: up to there the effects were let out.
-- Locks: none.
-- Plan: cursor_pkey, cursor_position_pkey, projection_pkey.
-- No row: its generation is gone.
select c.fence::text as fence, c.position::text as position, c.event_id::text as event_id, c.log_generation, c.done::text as done,
  c.effects_after::text as effects_after, c.state, c.reason, c.attempts, c.crashes,
  case when c.hold_until >= pawl.now() then c.hold_at::text end as hold_at,
  case
    when c.effects_after is null then (
      select greatest(l.position, l.effects_after)::text
      from pawl.projection p
      join pawl.cursor_at l on l.tenant = p.tenant and l.name = p.name and l.generation = p.live_generation
      where p.tenant = :tenant::text
        and p.name = :name::text
        and l.shard = :shard::integer
    )
  end as live_at
from pawl.cursor_at c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
