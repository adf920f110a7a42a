-- Rows of a submission that name the same record as an earlier row of it, at most :limit.
-- Locks: none.
-- Plan: submission_row_pkey, sorted by key.
-- Rows: each such row with the line of the first, and how many there are in all.
select d.line::text as line, d.type, d.key, d.first_line::text as first_line, count(*) over ()::text as total
from (
  select r.line, r.type, r.key, min(r.line) over (partition by r.type, r.key) as first_line
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.kind <> 'X'
) d
where d.line > d.first_line
order by d.line
limit :limit::integer
