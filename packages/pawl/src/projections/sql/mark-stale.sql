-- Cursors that are behind by more than their limit: they become stale, and no longer keep events from being removed.
-- Locks: their rows and those of their positions, SKIP LOCKED: one that has moved since the statement began is not behind. Then alerts.
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
  reason = format('It was more than %s behind at position %s.', c.max_lag, b.position)
from behind b
where c.tenant = b.tenant
  and c.name = b.name
  and c.generation = b.generation
  and c.shard = b.shard
returning c.name, c.generation, c.shard,
  pawl.raise_alert(c.tenant, 'cursor.stale', format('%s generation %s shard %s', c.name, c.generation, c.shard), c.reason)::text as raised
