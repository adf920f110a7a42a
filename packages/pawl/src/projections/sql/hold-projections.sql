-- Which of these projections and sinks are there, after every transaction that was forgetting one of them has ended.
-- Locks: their rows against deletion, in order, for the moment.
-- Plan: projection_pkey.
-- Rows: those that are there.
select p.tenant, p.name
from unnest(:tenants::text[], :names::text[]) u(tenant, name)
join pawl.projection p on p.tenant = u.tenant and p.name = u.name
order by p.tenant, p.name
for key share of p
