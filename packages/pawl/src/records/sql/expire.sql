-- Removes a submission whose time is over and whose staged rows are gone.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: it does not expire now.
delete from pawl.submission u
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.expires_at <= pawl.now()
  -- Not `exists`: the planner would take a match for likely and read the whole table to find none.
  and (
    select r.line
    from pawl.submission_row r
    where r.tenant = :tenant::text
      and r.submission = :id::bigint
    order by r.line
    limit 1
  ) is null
returning u.record_set
