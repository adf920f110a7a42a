-- Takes cursors whose holder is closed or that have none, each under a new fence. Whoever held one before is refused from now on. One that this process took
-- without getting the answer is among them: its fence is none that the process knows. A process that died had many cursors: the first crash makes
-- the next holder careful, and only those count on that end while the next event is tried alone. Where there is nothing to do none does.
-- Locks: their rows, SKIP LOCKED: one whose former holder still has a transaction open is taken at a later look.
-- Plan: by an index of each table. With rows in them: cursor_pkey, worker_pkey, sequencer_pkey, parked_key_unparking.
-- Rows: the cursors that were taken.
with free as materialized (
  select c.tenant, c.name, c.generation, c.shard,
    exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.id = c.holder
        and w.id <> :worker::integer
        and w.close_reason is distinct from 'stopped'
    )
    and (c.crashes = 0 or c.tried_at is not distinct from c.position)
    and (
      c.position < (select s.position from pawl.log_head s where s.tenant = '')
      or exists (
        select
        from pawl.parked_key k
        where k.tenant = c.tenant
          and k.name = c.name
          and k.generation = c.generation
          and k.shard = c.shard
          and k.state = 'unparking'
      )
    ) as is_crash
  from pawl.cursor c
  where c.tenant = :tenant::text
    and c.name = :name::text
    and c.generation = :generation::integer
    and c.state = 'running'
    and (
      (c.holder = :worker::integer and c.fence <> all (:fences::bigint[]))
      or not exists (
        select
        from pawl.worker w
        where w.tenant = ''
          and w.id = c.holder
          and w.closed_at is null
      )
    )
    and exists (
      select
      from pawl.worker m
      where m.tenant = ''
        and m.id = :worker::integer
        and m.nonce = :nonce::uuid
        and m.closed_at is null
    )
  order by c.shard
  limit :limit::integer
  for update of c skip locked
)
update pawl.cursor c
set holder = :worker::integer,
  fence = pawl.next_fence(),
  crashes = c.crashes + f.is_crash::integer
from free f
where c.tenant = f.tenant
  and c.name = f.name
  and c.generation = f.generation
  and c.shard = f.shard
returning c.shard, c.shards, c.fence::text as fence, c.position::text as position, c.event_id::text as event_id, c.log_generation,
  c.done::text as done, c.effects_after::text as effects_after, c.crashes, c.attempts,
  c.tried_at is not distinct from c.position as is_tried
