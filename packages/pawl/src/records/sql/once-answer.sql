-- What a put or append answered under its once key.
-- Locks: none.
-- Plan: the primary key of once.
-- No row: it was not used in the last 30 days.
select o.result::text as result
from pawl.once o
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
  and coalesce(o.expires_at, 'infinity') > pawl.now()
