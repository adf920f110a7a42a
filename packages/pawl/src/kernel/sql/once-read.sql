-- What a once key remembers, and whether it may be taken anew. The result is text, because the caller's client may parse json its own way.
-- Locks: none.
-- Plan: once_pkey.
-- No row: the key went meanwhile; take it.
select o.result::text as result, case when o.expires_at <= pawl.now() then 1 else 0 end as is_expired
from pawl.once o
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
