-- Says that a worker waits for notifications on its queues, and names the transactions that may have missed it.
-- Locks: its own sleeper rows.
-- Plan: an insert, then nothing: the snapshot comes with the statement that follows.
-- No row: it was asleep already, or its incarnation is closed, and nobody would remove what a closed one leaves.
insert into pawl.sleeper (queue, worker)
select q, :worker::integer
from unnest(:queues::text[]) q
where exists (select from pawl.worker w where w.tenant = '' and w.id = :worker::integer and w.closed_at is null)
on conflict do nothing
returning queue
