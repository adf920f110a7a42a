-- Says who keeps events from being removed.
-- Locks: the alert's row.
-- Plan: an insert or update inside the function.
-- One row, without meaning.
select pawl.raise_alert('', 'event.retention', 'event', :held::text)::text as raised
