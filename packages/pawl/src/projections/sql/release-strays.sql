-- Gives back cursors that this process took and does not run: the answer to their taking or to their release was lost. Another may want them.
-- Locks: their rows.
-- Plan: cursor_pkey, worker_pkey.
-- Rows: the cursors that were given back.
update pawl.cursor c
set holder = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.generation = :generation::integer
  and c.holder = :worker::integer
  and c.fence <> all (:fences::bigint[])
  and exists (
    select
    from pawl.worker m
    where m.tenant = ''
      and m.id = :worker::integer
      and m.nonce = :nonce::uuid
      and m.closed_at is null
  )
returning c.shard
