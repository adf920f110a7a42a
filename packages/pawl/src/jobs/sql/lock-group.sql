-- Holds a group of jobs for a shared transaction, so that no settle at its end can be refused and undo the neighbours' work.
-- Locks: the job rows, by id, SKIP LOCKED: a row that a stranger has locked must not hold up the others of its group, which has no time limit here.
-- Plan: job_pkey for each, with the array of settle.sql.
-- Rows: those still held; the others are lost, or locked.
select j.id, j.tenant
from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id and j.fence = g.fence
order by j.id
for no key update of j skip locked
