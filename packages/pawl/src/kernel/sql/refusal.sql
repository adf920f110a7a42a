-- name: refuse
-- Keeps evidence of refused writes.
-- Locks: none but its own new rows.
-- Plan: an insert.
-- No row is returned.
insert into pawl.refusal (tenant, what, subject, fence, holder, detail)
select u.tenant, :what::text, u.subject, u.fence, :holder::integer, left(:detail::text, 1000)
from unnest(:tenants::text[], :subjects::text[], :fences::bigint[]) as u(tenant, subject, fence)
