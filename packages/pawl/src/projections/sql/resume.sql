-- Lets a projection or sink go on that was paused, stale or latched, from where a person says, or from its place. After a latch that is taken
-- as it is now: never beyond the log's end, and whatever event is there.
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
