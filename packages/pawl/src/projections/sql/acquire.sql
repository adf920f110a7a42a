-- Takes cursors whose holder is closed or that have none, each under a new fence. Whoever held one before is refused from now on. One that this process took
-- without getting the answer is among them: its fence is none that the process knows. A process that died had many cursors: the first crash makes
-- the next holder careful, and only those count on that end while the next event is tried alone. Where there is nothing to do none does.
-- Locks: their rows and those of their positions, SKIP LOCKED: one whose former holder still has a transaction open, or has moved it since this
-- statement began, is taken at a later look.
-- Plan: by an index of each table. With rows in them: cursor_pkey, cursor_position_pkey, worker_pkey, sequencer_pkey, parked_key_unparking.
-- Rows: the cursors that were taken.
with free as materialized (
  select c.tenant, c.name, c.generation, c.shard, p.n,
    exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.id = c.holder
        and w.id <> :worker::integer
        and w.close_reason is distinct from 'stopped'
    )
    and (p.crashes = 0 or p.tried_at is not distinct from p.position)
    and (
      p.position < (select s.position from pawl.log_head s where s.tenant = '')
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
  join pawl.cursor_position p on p.tenant = c.tenant
    and p.name = c.name
    and p.generation = c.generation
    and p.shard = c.shard
    and p.n = (
      select max(m.n)
      from pawl.cursor_position m
      where m.tenant = c.tenant
        and m.name = c.name
        and m.generation = c.generation
        and m.shard = c.shard
    )
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
  for update of c, p skip locked
),
taken as (
  update pawl.cursor c
  set holder = :worker::integer,
    fence = pawl.next_fence()
  from free f
  where c.tenant = f.tenant
    and c.name = f.name
    and c.generation = f.generation
    and c.shard = f.shard
  returning c.shard, c.shards, c.fence, c.effects_after
),
counted as (
  update pawl.cursor_position p
  set crashes = p.crashes + f.is_crash::integer
  from free f
  where p.tenant = f.tenant
    and p.name = f.name
    and p.generation = f.generation
    and p.shard = f.shard
    and p.n = f.n
  returning p.shard, p.position, p.event_id, p.log_generation, p.done, p.crashes, p.attempts, p.tried_at
)
select t.shard, t.shards, t.fence::text as fence, p.position::text as position, p.event_id::text as event_id, p.log_generation,
  p.done::text as done, t.effects_after::text as effects_after, p.crashes, p.attempts, p.tried_at is not distinct from p.position as is_tried
from taken t
join counted p on p.shard = t.shard
