-- Lets a projection or sink go on that was paused, stale or latched, from where a person says, or from its place. After a latch that is taken
-- as it is now: never beyond the log's end, and whatever event is there.
-- Locks: its cursors' rows.
-- Plan: cursor_pkey.
-- No row: it does not exist, or runs already.
update pawl.cursor c
set state = 'running',
  reason = null,
  resumed_at = pawl.now(),
  position = coalesce(:from_position::bigint, case when c.state = 'latched' then least(c.position, :head::bigint) else c.position end),
  event_id = case when c.state <> 'latched' and :from_position::bigint is null then c.event_id end,
  log_generation = case when c.state <> 'latched' and :from_position::bigint is null then c.log_generation end,
  done = case when :from_position::bigint is not null or (c.state = 'latched' and c.position > :head::bigint) then '{}' else c.done end,
  attempts = 0,
  crashes = 0,
  tried_at = null,
  last_error = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
  and c.state <> 'running'
returning c.shard, c.position::text as position
