-- Says that a worker waits for notifications on its queues, and names the transactions that may have missed it.
-- Locks: its own sleeper rows.
-- Plan: an insert, then nothing: the snapshot comes with the statement that follows.
-- No row: it was asleep already.
insert into pawl.sleeper (queue, worker)
select q, :worker::integer
from unnest(:queues::text[]) q
on conflict do nothing
returning queue
