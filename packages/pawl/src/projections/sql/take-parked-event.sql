-- Takes a parked event off its key, in the transaction of its effects.
-- Locks: its row; the cursor's is held by the transaction.
-- Plan: by an index of each table. With rows in them: parked_event_pkey.
-- No row: it was skipped by an operator. Else whether its effects are still to be let out.
delete from pawl.parked_event e
where e.tenant = :tenant::text
  and e.name = :name::text
  and e.generation = :generation::integer
  and e.shard = :shard::integer
  and e.key_tenant = :key_tenant::text
  and e.key = :key::text
  and e.position = :position::bigint
returning e.owes_effects
