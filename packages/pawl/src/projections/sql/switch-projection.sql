-- Names the live generation: the one row that makes a switch.
-- Locks: the projection's row, which the transaction holds.
-- Plan: projection_pkey.
-- No row: it is gone.
update pawl.projection p
set live_generation = :generation::integer,
  switched_at = pawl.now()
where p.tenant = :tenant::text
  and p.name = :name::text
returning p.name
