-- Lets every generation go on.
-- Locks: the rows that are held.
-- Plan: cursor_pkey.
-- No row is returned.
update pawl.cursor c
set hold_at = null,
  hold_until = null
where c.tenant = :tenant::text
  and c.name = :name::text
  and c.hold_at is not null
