-- Ends the time of a scope's invalid uploads but for the newest ones: each may have as many rows as a file can.
-- Locks: those submission rows.
-- Plan: submission_open_of_scope. Those few are then found by their ids.
-- Rows: those that expire with this; a tending job removes each.
update pawl.submission u
set expires_at = pawl.now()
where u.tenant = :tenant::text
  and u.id = any (
    array(
      select o.id
      from pawl.submission o
      where o.tenant = :tenant::text
        and o.scope_id = :scope_id::bigint
        and o.state = 'invalid'
        and o.id <> :id::bigint
      order by o.id desc
      offset :keep::integer
      limit 100
    )
  )
  and u.expires_at > pawl.now()
returning u.id::text as id
