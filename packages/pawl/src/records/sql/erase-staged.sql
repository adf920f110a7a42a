-- Takes a record out of everything that is staged for its scope. What is left of those submissions is superseded, and cannot be rebased.
-- Locks: those staged rows.
-- Plan: submission_of_scope, submission_row_pkey.
-- No row is returned.
delete from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = any (
    array(
      select u.id
      from pawl.submission u
      where u.tenant = :tenant::text
        and u.scope_id = :scope_id::bigint
        and u.state <> 'submitted'
    )
  )
  and r.type = :type::text
  and r.key = :key::text
