-- Takes one entity that is due and that nobody refreshes just now. The lock ends with the transaction; it is tried, never waited for.
-- Locks: the entity's advisory lock, and the cursor's row against a switch of generations, which would rename the tables.
-- Plan: dirty_due, cursor_pkey.
-- One row: without an entity if nothing is due among the oldest marks, or others are at them; `marks` says how many were looked at. No row: it is
-- paused, or about to be switched.
with live as materialized (
  select c.effects_after is not null as is_live
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = 0
    and c.state <> 'paused'
    and (c.hold_at is distinct from 0 or c.hold_until < pawl.now())
  for key share
),
due as materialized (
  select d.entity
  from pawl.dirty d
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.generation = :generation::integer
    and d.due_at <= pawl.now()
  order by d.due_at, d.id
  limit :marks::integer
),
candidate as materialized (
  select distinct d.entity
  from due d
)
select t.entity, l.is_live, (select count(*)::integer from due) as marks,
  set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle
from live l
left join lateral (
  select k.entity
  from candidate k
  where pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(:tenant::text, :name::text, :generation::integer, k.entity)::text, 0))
  limit 1
) t on true
