-- Where the next chunk ends: the line of its last row.
-- Locks: none.
-- Plan: submission_row_pkey.
-- One row: null when no row is left.
select max(b.line)::text as line
from (
  select r.line
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line > :after::bigint
    and r.kind in ('C', 'U', 'D')
  order by r.line
  limit :limit::integer
) b
