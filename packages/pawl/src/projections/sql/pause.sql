-- Stops a projection or sink. Waits for a transaction that is moving it; none moves it afterwards. For refreshes that are under way there is
-- await-refreshes: to wait for them here, while others still begin, might have no end.
-- Locks: its cursors' rows, by shard.
-- Plan: cursor_pkey.
-- No row: it does not exist, or does not run.
update pawl.cursor c
set state = 'paused',
  reason = left(:reason::text, 2000)
where c.tenant = :tenant::text
  and c.name = :name::text
  and (:generation::integer is null or c.generation = :generation::integer)
  and c.state = 'running'
returning c.shard
