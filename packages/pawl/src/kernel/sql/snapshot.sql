-- The transactions in progress now. Whoever enqueued in one of them may have read the sleep flag before it was set.
-- Locks: none.
-- Plan: none.
-- One row: the current snapshot as text.
select pg_current_snapshot()::text as snapshot
