-- Says that a worker waits for notifications on its queues. Which transactions may have missed it, snapshot.sql says next.
-- Locks: its own sleeper rows.
-- Plan: an insert.
-- Rows: the queues that it was not asleep on yet; none where its incarnation is closed, since nobody would remove what a closed one leaves.
insert into pawl.sleeper (queue, worker)
select q, :worker::integer
from unnest(:queues::text[]) q
where exists (select from pawl.worker w where w.tenant = '' and w.id = :worker::integer and w.closed_at is null)
on conflict do nothing
returning queue
