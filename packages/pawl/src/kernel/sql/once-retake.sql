-- Takes an expired once key anew. Of several that try, the first to commit has it; the others find it fresh.
-- Locks: the key's row.
-- Plan: once_pkey. The coalesce keeps the planner off once_expiry, which knows nothing of the key.
-- No row: somebody else took it, or it was removed.
update pawl.once o
set result = null,
  created_at = pawl.now(),
  expires_at = pawl.now() + :ttl_ms::bigint * interval '1 millisecond'
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
  and coalesce(o.expires_at, 'infinity') <= pawl.now()
returning 1 as taken
