-- Where the next run of a purge ends: behind how many rows back it goes.
-- Locks: none.
-- Plan: submission_row_pkey.
-- One row: 0 when the run takes everything that is left.
select coalesce(min(b.line) filter (where b.place > :limit::integer), 0)::text as line
from (
  select r.line, row_number() over (order by r.line desc) as place
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line <= :from::bigint
    and r.kind in ('C', 'U', 'D')
  order by r.line desc
  limit :limit::integer + 1
) b
