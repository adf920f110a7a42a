-- Stores the result under a once key that this transaction took.
-- Locks: the key's row, which is this transaction's own.
-- Plan: once_pkey.
-- One row: it is stored. No row: the key is not there.
update pawl.once o
set result = :result::jsonb
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
returning 1 as stored
