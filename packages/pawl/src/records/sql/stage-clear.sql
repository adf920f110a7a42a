-- Removes staged rows of a submission, at most :limit, lowest line first.
-- Locks: those rows.
-- Plan: submission_row_pkey.
-- Rows: the lines that are gone; fewer than :limit means that none is left.
delete from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.line <= (
    select max(b.line)
    from (
      select t.line
      from pawl.submission_row t
      where t.tenant = :tenant::text
        and t.submission = :id::bigint
      order by t.line
      limit :limit::integer
    ) b
  )
returning r.line::text as line
