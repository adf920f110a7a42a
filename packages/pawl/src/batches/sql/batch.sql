-- name: insert
-- Adds a batch, queued. It runs, or is removed again, in start-batch.
-- Locks: none but its own new row.
-- Plan: an insert.
-- One row: the id.
insert into pawl.batch (tenant, name, track, queue, policy, step, total, units, allowance, allowance_ms, meta, by)
values (:tenant::text, :name::text, :track::text, :queue::text, :policy::text, :step::text, :total::integer, :units::double precision,
  :allowance::jsonb, pawl.batch_allowance(:total::integer, :units::double precision, :allowance::jsonb), :meta::jsonb, :by::text)
returning id::text

-- name: insert-rerun
-- Adds a batch for the items that insert-rerun-items copied, with the name, track, queue, allowance and start's units of the ended one, and its policy
-- and meta unless others are given.
-- Locks: none but its own new row.
-- Plan: batch_pkey, batch_item_pkey.
-- One row: the id.
insert into pawl.batch (id, tenant, name, track, queue, policy, step, total, units, allowance, allowance_ms, meta, by, rerun_of)
select :id::bigint, b.tenant, b.name, b.track, b.queue, coalesce(:policy::text, b.policy), 'step', a.total, u.units, b.allowance,
  pawl.batch_allowance(a.total, u.units, b.allowance), coalesce(:meta::jsonb, b.meta), :by::text, b.id
from pawl.batch b
cross join lateral (
  select count(*)::integer as total, sum(i.units) as units
  from pawl.batch_item i
  where i.tenant = b.tenant
    and i.batch_id = :id::bigint
) a
cross join lateral (
  select greatest(0, b.units - sum(i.units)) + a.units as units
  from pawl.batch_item i
  where i.tenant = b.tenant
    and i.batch_id = b.id
) u
where b.tenant = :tenant::text
  and b.id = :of::bigint
returning id::text

-- name: start-batch
-- The last statement of a start: it runs, waits, or is refused and removed.
-- Locks: the track, at most 2 s; a batch that it ends, at most 250 ms; their rows.
-- Plan: a call.
-- One row: the verdict, and the batch in its way.
select s.verdict, s.blocker::text as blocker
from pawl.start_batch(:tenant::text, :id::bigint, :is_own::boolean) s

-- name: state
-- The state of a batch.
-- Locks: none.
-- Plan: batch_pkey.
-- No row: there is no such batch.
select b.state, b.deadline, ceil(extract(epoch from b.deadline - pawl.now()) * 1000)::bigint as left_ms, b.deadline <= pawl.now() as is_overdue, b.boundary_at, b.job_id::text as job_id
from pawl.batch b
where b.tenant = :tenant::text
  and b.id = :id::bigint

-- name: running
-- The batch that runs on a track and is not overdue: a start that is sure to be refused writes nothing.
-- Locks: none.
-- Plan: batch_running.
-- No row: the track is free, as far as this snapshot shows.
select b.id::text as id
from pawl.batch b
where b.tenant = :tenant::text
  and b.track = :track::text
  and b.state = 'running'
  and b.deadline > pawl.now()

-- name: get
-- One batch with its counts and sums.
-- Locks: none.
-- Plan: batch_pkey, batch_item_pkey.
-- No row: there is no such batch for this tenant.
select b.id::text as id, b.name, b.track, b.policy, b.state, b.phase, b.revision, b.total, b.units, b.allowance_ms::double precision as allowance_ms, b.deadline, b.created_at, b.started_at,
  b.ended_at, b.end_reason, b.prepared, b.meta, b.by, b.rerun_of::text as rerun_of, b.boundary_at, c.done, c.failed, c.late, c.restored,
  (
    select jsonb_object_agg(t.name, t.total)
    from (
      select s.key as name, sum(s.value::numeric) as total
      from (
        select i.sums
        from pawl.batch_item i
        where i.tenant = b.tenant and i.batch_id = b.id and jsonb_typeof(i.sums) = 'object'
        union all
        select b.boundary_sums where jsonb_typeof(b.boundary_sums) = 'object'
      ) x
      cross join lateral jsonb_each(x.sums) s
      where jsonb_typeof(s.value) = 'number'
      group by s.key
    ) t
  ) as sums
from pawl.batch_view b
cross join lateral (
  select count(*) filter (where i.outcome = 'done')::integer as done, count(*) filter (where i.outcome = 'failed')::integer as failed,
    count(*) filter (where i.late_at is not null)::integer as late, count(*) filter (where i.restored_at is not null)::integer as restored
  from pawl.batch_item i
  where i.tenant = b.tenant
    and i.batch_id = b.id
) c
where b.tenant = :tenant::text
  and b.id = :id::bigint

-- name: list
-- A page of batches, newest first.
-- Locks: none.
-- Plan: batch_pkey backwards.
-- No row: no such batches beyond :after.
select b.id::text as id, b.name, b.track, b.policy, b.state, b.phase, b.revision, b.total, b.units, b.allowance_ms::double precision as allowance_ms, b.deadline, b.created_at, b.started_at,
  b.ended_at, b.end_reason, b.prepared, b.meta, b.by, b.rerun_of::text as rerun_of, b.boundary_at
from pawl.batch_view b
where b.tenant = :tenant::text
  and b.id < coalesce(:after::bigint, 9223372036854775807)
  and (:name::text is null or b.name = :name::text)
  and (:track::text is null or b.track = :track::text)
  and (:state::text is null or b.state = :state::text)
order by b.id desc
limit :limit::integer

-- name: inspect
-- What a watch, and a flush that may have been the last, look at.
-- Locks: none.
-- Plan: batch_pkey, batch_cursor_pkey, job_pkey. In its call, the items from the cursor on.
-- No row: there is no such batch, or it has another fence.
select b.state, ceil(extract(epoch from b.deadline - pawl.now()) * 1000)::bigint as left_ms, w.n as waiting, coalesce(w.n - 1, b.total) as ended,
  coalesce(c.upto, 0) as upto,
  b.fed < b.total and coalesce(j.state, 'gone') in ('dead', 'gone') as is_step_lost,
  case when b.boundary_at is not null then 'feed' when b.step = 'prepare' then 'prepare' else 'boundary' end as step,
  b.job_id::text as step_job, j.last_error
from pawl.batch b
cross join lateral pawl.first_waiting_item(b.tenant, b.id) w(n)
left join pawl.batch_cursor c on c.tenant = b.tenant and c.batch_id = b.id
left join lateral (select x.state, x.last_error from pawl.job x where x.tenant = b.tenant and x.id = b.job_id limit 1) j on true
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.fence = :fence::bigint

-- name: open-batches
-- The batches of some names that run or are not closed, the due ones first.
-- Locks: none.
-- Plan: batch_open, job_pkey.
-- No row: none is open.
select b.tenant, b.id::text as batch, b.fence::text as fence, b.state = 'running' as is_running,
  case when b.state = 'running' then b.deadline <= pawl.now() else coalesce(j.state, 'dead') = 'dead' end as is_due
from pawl.batch b
left join lateral (select x.state from pawl.job x where x.tenant = b.tenant and x.id = b.job_id limit 1) j on true
where b.name = any (:names::text[])
  and b.closed_at is null
  and b.state <> 'queued'
order by is_due desc, b.id
limit 100

-- name: revive-end
-- Enqueues the end of an ended batch again, because its job is dead or gone. Each of its parts skips what is done.
-- Locks: the batch's row; the dead job's row, SKIP LOCKED.
-- Plan: batch_pkey, job_pkey.
-- No row: it is closed, or the job of its end waits.
select pawl.step_batch(b.tenant, b.id, 'end', '{"part": "clear", "after": 0}')::text as enqueued,
  (select count(*) from pawl.cancel_jobs(b.tenant, array[b.job_id], 'its end is enqueued again', p_wait => false))::integer as cancelled
from pawl.batch b
left join pawl.job j on j.tenant = b.tenant and j.id = b.job_id
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.ended_at is not null
  and b.closed_at is null
  and coalesce(j.state, 'dead') = 'dead'

-- name: end-batch
-- Ends a batch and starts the next of its track. The dead job of a lost step goes with it.
-- Locks: track, batch, each at most 250 ms; their rows; then that job's row, SKIP LOCKED.
-- Plan: a call.
-- One row: its state now, or 'busy'; null: there is no such batch.
with ended as materialized (
  select r.state from pawl.end_batch(:tenant::text, :id::bigint, :state::text, :reason::text) r
)
select e.state,
  case
    when e.state = 'failed' then (select count(*) from pawl.cancel_jobs(:tenant::text, array[:step_job::bigint], 'its batch has failed', p_wait => false))
  end as cancelled
from ended e

-- name: cancel-batch
-- Cancels a batch for a person.
-- Locks: as end-batch.
-- Plan: a call.
-- One row: its state now, or 'busy', and whether this call has ended it; null: there is no such batch.
select e.state, e.is_ended,
  case when e.is_ended and e.state = 'cancelled' then pawl.write_audit(:tenant::text, :by::text, 'batch.cancel', :id::text, :reason::text)::text end as audit
from pawl.end_batch(:tenant::text, :id::bigint, 'cancelled', :reason::text) e

-- name: mark-ending
-- Keeps new guards from a batch for 10 s, so that an end gets its lock when the present ones have ended.
-- Locks: its row, at most 250 ms.
-- Plan: a call.
-- One row, without meaning.
select pawl.mark_ending(:tenant::text, :id::bigint)::text as marked

-- name: extend
-- Moves the deadline of a running batch.
-- Locks: its row, at most 1 s.
-- Plan: a call.
-- No row: it does not run.
select e.deadline,
  pawl.write_audit(:tenant::text, :by::text, 'batch.extend', :id::text, :reason::text, jsonb_build_object('ms', :ms::bigint))::text as audit
from pawl.extend_batch(:tenant::text, :id::bigint, :ms::bigint) e(deadline)
where e.deadline is not null

-- name: blockers
-- Raises the alert about a batch that cannot end, with the sessions that hold its lock.
-- Locks: the alert.
-- Plan: a call.
-- One row, without meaning.
select pawl.raise_alert(:tenant::text, 'batch.blocked', :id::text,
  format('Batch %s is past its deadline and cannot end, because open transactions hold its lock: %s', :id::text,
    coalesce(pawl.batch_holders(:tenant::text, :id::bigint), 'none now')), 1, interval '10 minutes')::text as raised

-- name: holders
-- The sessions that hold the lock of a batch or of its track.
-- Locks: none.
-- Plan: a call.
-- One row: their pids and applications; null: none now.
select pawl.batch_holders(:tenant::text, :id::bigint) as holders

-- name: prepare-first
-- Puts prepare before the boundary, where the process that started the batch did not know that it has one.
-- Locks: its row.
-- Plan: batch_pkey.
-- No row: prepare has run, or the batch does not run any more.
with held as materialized (
  select b.tenant, b.id
  from pawl.batch b
  where b.tenant = :tenant::text
    and b.id = :id::bigint
    and b.fence = :fence::bigint
    and b.state = 'running'
    and b.prepared is null
    and b.boundary_at is null
  for no key update
)
select pawl.step_batch(h.tenant, h.id, 'prepare')::text as enqueued
from held h

-- name: prepared
-- Keeps what prepare returned.
-- Locks: its row.
-- Plan: batch_pkey.
-- No row: the batch does not run any more.
update pawl.batch b
set prepared = :prepared::jsonb,
  revision = b.revision + 1
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.fence = :fence::bigint
  and b.state = 'running'
  and b.prepared is null
returning b.id

-- name: boundary
-- Crosses the boundary, before the effects of the same transaction. That may commit after the deadline, and never begins after it.
-- Locks: its row, until the transaction ends: the batch cannot end before.
-- Plan: batch_pkey.
-- No row: the batch does not run any more, is overdue, or has crossed it.
update pawl.batch b
set boundary_at = pawl.now(),
  revision = b.revision + 1
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.fence = :fence::bigint
  and b.state = 'running'
  and b.boundary_at is null
  and b.deadline > pawl.now()
returning b.id

-- name: boundary-sums
-- Keeps the sums of the boundary, and tells of it.
-- Locks: its row.
-- Plan: batch_pkey.
-- One row, without meaning.
with kept as (
  update pawl.batch b
  set boundary_sums = :sums::jsonb
  where b.tenant = :tenant::text
    and b.id = :id::bigint
  returning b.tenant, b.id
)
select pawl.batch_event(k.tenant, k.id, 'batch.boundary', jsonb_build_object('sums', :sums::jsonb))::text as told
from kept k

-- name: feed
-- Gives the next items their jobs, and enqueues the step that feeds more.
-- Locks: the batch's row.
-- Plan: a call.
-- One row: whether the batch still runs; null: it does, and must not begin anything now.
select pawl.feed_batch(:tenant::text, :id::bigint, :fence::bigint) as is_fed

-- name: next-step
-- Enqueues a step.
-- Locks: the batch's row.
-- Plan: a call.
-- One row, without meaning.
select pawl.step_batch(:tenant::text, :id::bigint, :kind::text, :payload::jsonb)::text as enqueued

-- name: closed
-- Nothing is left to do for an ended batch but to remove it when its time is over.
-- Locks: its row.
-- Plan: batch_pkey.
-- No row: it is closed already.
with closed as (
  update pawl.batch b
  set closed_at = pawl.now()
  where b.tenant = :tenant::text
    and b.id = :id::bigint
    and b.ended_at is not null
    and b.closed_at is null
  returning b.tenant, b.id, b.queue
)
select pawl.batch_event(c.tenant, c.id, 'batch.closed', :counts::jsonb)::text as told, r.id as removal
from closed c
cross join lateral pawl.enqueue_many(c.tenant, c.queue, 'pawl.batch.remove', jsonb_build_array(jsonb_build_object('batch', c.id::text)),
  p_delay_ms => :keep_ms::bigint, p_priority => -100) r(id)

-- name: remove
-- Removes a batch whose items are removed.
-- Locks: its row.
-- Plan: batch_pkey, batch_item_pkey.
-- No row: it is not closed, has items, or is gone.
delete from pawl.batch b
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.closed_at is not null
  and not exists (select from pawl.batch_item i where i.tenant = b.tenant and i.batch_id = b.id)
returning b.id

-- name: queue-ahead
-- The batch that holds up a queued one: the runner of its track, and how many wait before it.
-- Locks: none.
-- Plan: batch_pkey, batch_running, batch_queued.
-- No row: there is no such batch.
select r.id::text as blocker, r.name, r.deadline,
  (select count(*)::integer from pawl.batch q where q.tenant = b.tenant and q.track = b.track and q.state = 'queued' and q.id < b.id) as ahead
from pawl.batch b
left join pawl.batch r on r.tenant = b.tenant and r.track = b.track and r.state = 'running'
where b.tenant = :tenant::text
  and b.id = :id::bigint
