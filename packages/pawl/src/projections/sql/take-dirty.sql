-- Takes one entity that is due and that nobody refreshes just now. The lock ends with the transaction; it is tried, never waited for.
-- Locks: the entity's advisory lock, and the cursor's row against a switch of generations, which would rename the tables.
-- Plan: dirty_due, cursor_pkey.
-- No row: nothing is due, others are at it, or it is paused.
with live as materialized (
  select c.effects_after is not null as is_live
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.shard = 0
    and c.state <> 'paused'
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
  limit 64
),
candidate as materialized (
  select distinct d.entity
  from due d
)
select k.entity, (select l.is_live from live l) as is_live, set_config('idle_in_transaction_session_timeout', :idle_ms::text, true) as idle
from candidate k
where exists (select from live)
  and pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(:tenant::text, :name::text, :generation::integer, k.entity)::text, 0))
limit 1
