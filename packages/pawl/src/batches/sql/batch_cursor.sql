-- name: move-cursor
-- Notes that items up to :upto have ended.
-- Locks: its row.
-- Plan: an insert.
-- No row is returned.
insert into pawl.batch_cursor as c (tenant, batch_id, upto)
values (:tenant::text, :id::bigint, :upto::integer)
on conflict (tenant, batch_id) do update
set upto = excluded.upto
where c.upto < excluded.upto

-- name: remove-cursor
-- Removes the cursor of a batch that is removed.
-- Locks: its row.
-- Plan: batch_cursor_pkey.
-- No row is returned.
delete from pawl.batch_cursor c
where c.tenant = :tenant::text
  and c.batch_id = :id::bigint
