-- Notes entities that changed, in the transaction that moves the cursor. Rows are only added, so it waits for no refresh.
-- Locks: none but its own new rows.
-- Plan: an insert.
-- No row is returned.
insert into pawl.dirty (tenant, name, generation, entity, position, positions)
select :tenant::text, :name::text, :generation::integer, u.entity, min(u.position), array_agg(distinct u.position)
from unnest(:entities::text[], :positions::bigint[]) as u(entity, position)
group by u.entity
order by 5
