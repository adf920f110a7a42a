-- name: once-take
-- Takes a once key in the transaction of its effect. It waits for a transaction that is about to commit the same key.
-- Locks: the key's new entry in once_pkey.
-- Plan: an insert.
-- No row: the key is taken; once-read tells by what.
insert into pawl.once (tenant, namespace, key, expires_at)
values (:tenant::text, :namespace::text, :key::text, pawl.now() + :ttl_ms::bigint * interval '1 millisecond')
on conflict do nothing
returning 1 as taken

-- name: once-retake
-- Takes an expired once key again. Of several that try, the first to commit has it; the others find it fresh.
-- Locks: the key's row.
-- Plan: once_pkey. The coalesce keeps the planner off once_expiry, which knows nothing of the key.
-- No row: another transaction took it, or it was removed.
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
-- The result under a once key, and whether the key may be taken again. The result is text, because the caller's client may parse json its own way.
-- Locks: none.
-- Plan: once_pkey.
-- No row: the key was removed since; take it.
select o.result::text as result, case when o.expires_at <= pawl.now() then 1 else 0 end as is_expired
from pawl.once o
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text

-- name: prune
-- Removes what is past its keep: expired once keys, old evidence, long closed workers that hold nothing, alerts that are long over, at most
-- :limit of each; and all sleepers whose worker is closed (it lay down at that very moment).
-- Locks: those rows; once keys, workers and alerts with SKIP LOCKED.
-- Plan: once_expiry and primary keys.
-- One row: how many rows went.
with expired as (
  delete from pawl.once o
  where o.ctid = any (array(
    select k.ctid from pawl.once k where k.expires_at < (select pawl.now()) limit :limit::integer for update skip locked
  ))
  returning 1
),
evidence as (
  delete from pawl.refusal r
  where r.ctid = any (array(
    select k.ctid from pawl.refusal k where k.tenant >= '' order by k.id desc offset 10000 limit :limit::integer
  ))
  returning 1
),
workers as (
  delete from pawl.worker w
  where w.ctid = any (array(
    select k.ctid
    from pawl.worker k
    where k.closed_at < (select pawl.now()) - interval '7 days'
      and k.emptied_at is not null
    limit :limit::integer
    for update skip locked
  ))
  returning w.tenant, w.id
),
processes as (
  delete from pawl.worker_process p
  using workers w
  where p.tenant = w.tenant
    and p.id = w.id
),
alerts as (
  delete from pawl.alert a
  where a.ctid = any (array(
    select k.ctid
    from pawl.alert k
    where coalesce(k.resolved_at, k.until) < (select pawl.now()) - interval '30 days'
    limit :limit::integer
    for update skip locked
  ))
  returning 1
),
sleepers as (
  delete from pawl.sleeper s
  where s.worker <> all (array(select w.id from pawl.live_workers() w where w.closed_at is null))
  returning 1
)
select (select count(*) from expired) + (select count(*) from evidence) + (select count(*) from workers) + (select count(*) from alerts)
  + (select count(*) from sleepers) as removed
