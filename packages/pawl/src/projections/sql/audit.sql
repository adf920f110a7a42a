-- Keeps what a person did, and why.
-- Locks: none but its own new row.
-- Plan: an insert.
-- No row is returned.
insert into pawl.audit (tenant, actor, action, subject, reason, detail)
values (:tenant::text, :actor::text, :action::text, :subject::text, left(:reason::text, 2000), :detail::jsonb)
