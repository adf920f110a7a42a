-- One event about a submission, in the transaction that commits it or gives it up, which holds the scope: so the events of a scope are in the order of its numbers.
-- Locks: none that others wait for.
-- Plan: an insert.
-- One row: what names the event.
select pawl.append_event(:tenant::text, 'default', :record_set::text, :scope::text, :type::text, :payload::jsonb) as answer
