-- Takes a once key in the transaction of its effect. It waits for whoever is about to commit the same key.
-- Locks: the key's new entry in once_pkey.
-- Plan: an insert.
-- No row: the key is taken; once-read.sql tells by what.
insert into pawl.once (tenant, namespace, key, expires_at)
values (:tenant::text, :namespace::text, :key::text, pawl.now() + :ttl_ms::bigint * interval '1 millisecond')
on conflict do nothing
returning 1 as taken
