-- Frees a key whose last parked event was taken. Whoever adds events to the key holds the cursor's row, as this transaction does.
-- Locks: its row; the cursor's is held by the transaction.
-- Plan: parked_key_pkey, parked_event_pkey.
-- No row: events are left, or an operator parked it again.
delete from pawl.parked_key k
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and not exists (
    select
    from pawl.parked_event e
    where e.tenant = k.tenant
      and e.name = k.name
      and e.generation = k.generation
      and e.shard = k.shard
      and e.key_tenant = k.key_tenant
      and e.key = k.key
  )
returning k.key
