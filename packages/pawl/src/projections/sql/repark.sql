-- Parks a key again whose replay failed, with the new error.
-- Locks: its row.
-- Plan: by an index of each table. With rows in them: parked_key_pkey.
-- No row: it is not being replayed.
update pawl.parked_key k
set state = 'parked',
  reason = left(:reason::text, 2000),
  error = left(:error::text, 4000),
  attempts = k.attempts + 1
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and k.state = 'unparking'
returning k.key
