-- A cursor as it is when every transaction that was moving it has ended: after a commit without an answer this tells what became of it.
-- Locks: its row, for the moment.
-- Plan: cursor_pkey.
-- No row: its generation is gone.
select c.fence::text as fence, c.position::text as position, c.event_id::text as event_id, c.log_generation, c.done::text as done,
  c.effects_after::text as effects_after, c.state, c.reason, c.attempts, c.crashes,
  case when c.hold_until >= pawl.now() then c.hold_at::text end as hold_at
from pawl.cursor c
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.shard = :shard::integer
for no key update
