-- One event per submission, in its committing transaction, which holds the scope: so the events of a scope are in the order of its numbers.
-- Locks: none that others wait for.
-- Plan: an insert.
-- One row: what names the event.
select pawl.append_event(:tenant::text, 'default', :record_set::text, :scope::text, 'submission.committed', :payload::jsonb) as answer
