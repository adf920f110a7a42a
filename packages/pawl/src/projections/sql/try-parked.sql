-- Notes that the next event of a parked key is about to be replayed, and counts the one before who died at it.
-- Locks: the key's row.
-- Plan: by an index of each table. With rows in them: parked_key_pkey, cursor_pkey, worker_pkey.
-- No row: lost, or no longer to be replayed; the write that follows tells.
update pawl.parked_key k
set tried_at = :position::bigint,
  tried_by = :worker::integer,
  crashes = case
    when k.tried_at is distinct from :position::bigint then 0
    when exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.id = k.tried_by
        and w.id <> :worker::integer
        and w.close_reason is distinct from 'stopped'
        and w.closed_at is not null
    ) then k.crashes + 1
    else k.crashes
  end
where k.tenant = :tenant::text
  and k.name = :name::text
  and k.generation = :generation::integer
  and k.shard = :shard::integer
  and k.key_tenant = :key_tenant::text
  and k.key = :key::text
  and k.state = 'unparking'
  and exists (
    select
    from pawl.cursor c
    where c.tenant = k.tenant
      and c.name = k.name
      and c.generation = k.generation
      and c.shard = k.shard
      and c.fence = :fence::bigint
  )
returning k.crashes
