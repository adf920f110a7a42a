-- Asks the holder to replay a parked key, or all of them; a state projection's entities become due again.
-- Locks: the keys' rows, the entities' marks.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, dirty_due.
-- Rows: the keys.
with keys as (
  update pawl.parked_key k
  set state = 'unparking',
    tried_at = null,
    crashes = 0
  where k.tenant = :tenant::text
    and k.name = :name::text
    and k.state = 'parked'
    and (:key::text is null or (k.key = :key::text and (:key_tenant::text is null or k.key_tenant = :key_tenant::text)))
  returning k.key
),
entities as (
  update pawl.dirty d
  set due_at = pawl.now(),
    attempts = 0,
    parked_at = null
  where d.tenant = :tenant::text
    and d.name = :name::text
    and d.due_at = 'infinity'
    and (:key::text is null or d.entity = :key::text)
  returning d.entity
)
select k.key
from keys k
union
select e.entity
from entities e
