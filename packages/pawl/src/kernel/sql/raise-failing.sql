-- Raises the alert of a statement of the engine that keeps failing, or refreshes it.
-- Locks: that alert row.
-- Plan: the few open alerts.
-- One row.
select pawl.raise_alert('', 'engine.failing', :subject::text, :message::text)
