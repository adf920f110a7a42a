-- name: sleep
-- Says that a worker waits for notifications on its queues. Which transactions may have missed it, snapshot says next.
-- Locks: its own sleeper rows.
-- Plan: an insert.
-- Rows: the queues that it was not asleep on yet; none where its incarnation is closed, since nothing would remove the flag of a closed one.
insert into pawl.sleeper (queue, worker)
select q, :worker::integer
from unnest(:queues::text[]) q
where exists (select from pawl.worker w where w.tenant = '' and w.id = :worker::integer and w.closed_at is null)
on conflict do nothing
returning queue

-- name: awake
-- Says that a worker is busy on these queues, so that enqueues need not notify it. What else of its process sleeps goes on sleeping.
-- Locks: its own sleeper rows.
-- Plan: a short scan of the few sleepers.
-- No row is returned.
delete from pawl.sleeper s
where s.tenant = ''
  and s.queue = any (:queues::text[])
  and s.worker = :worker::integer

-- name: snapshot
-- The transactions in progress now. An enqueue in one of them may have read the sleep flag before it was set.
-- Locks: none.
-- Plan: none.
-- One row: the current snapshot as text.
select pg_current_snapshot()::text as snapshot

-- name: still-open
-- Whether a transaction that was in progress in an earlier snapshot is still in progress. An id that this server has not given out yet is of
-- another one, before a failover or a restore: that transaction is no more.
-- Locks: none.
-- Plan: none.
-- One row: how many of them are still open.
select count(*)::integer as open
from (
  select x
  from pg_snapshot_xip(:snapshot::pg_snapshot) x
) was
where case when was.x < pg_snapshot_xmax(pg_current_snapshot()) then pg_xact_status(was.x) = 'in progress' end
