-- Tells, of the events that a generation has parked when it becomes live, which the live one has parked too and never let the effects out of.
-- Locks: the parked events of that generation; the cursors' rows are held by the transaction.
-- Plan: parked_event_pkey, cursor_pkey.
-- No row is returned.
update pawl.parked_event e
set owes_effects = exists (
    select
    from pawl.parked_event o
    join pawl.cursor c on c.tenant = o.tenant and c.name = o.name and c.generation = o.generation and c.shard = o.shard
    where o.tenant = e.tenant
      and o.name = e.name
      and o.generation = :live::integer
      and o.shard = e.shard
      and o.key_tenant = e.key_tenant
      and o.key = e.key
      and o.position = e.position
      and (o.owes_effects or o.position > c.effects_after)
  )
where e.tenant = :tenant::text
  and e.name = :name::text
  and e.generation = :generation::integer
