-- name: once-take
-- Takes a once key in the transaction of its effect. It waits for whoever is about to commit the same key.
-- Locks: the key's new entry in once_pkey.
-- Plan: an insert.
-- No row: the key is taken; once-read tells by what.
insert into pawl.once (tenant, namespace, key, expires_at)
values (:tenant::text, :namespace::text, :key::text, pawl.now() + :ttl_ms::bigint * interval '1 millisecond')
on conflict do nothing
returning 1 as taken

-- name: once-retake
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

-- name: once-store
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

-- name: once-read
-- What a once key remembers, and whether it may be taken anew. The result is text, because the caller's client may parse json its own way.
-- Locks: none.
-- Plan: once_pkey.
-- No row: the key went meanwhile; take it.
select o.result::text as result, case when o.expires_at <= pawl.now() then 1 else 0 end as is_expired
from pawl.once o
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
