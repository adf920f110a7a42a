-- How many rows of each kind are staged; and, as the kind 'keys', how many different records they name. That is counted by a hash, which
-- can only be too small: then duplicates.sql looks closely.
-- Locks: none.
-- Plan: submission_row_pkey. Rows are wide, so they are read once and two narrow columns of them are counted twice.
-- Rows: one per kind, and one for the keys.
with staged as materialized (
  select r.kind, hashtextextended(r.key, hashtext(r.type)) as named
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
)
select s.kind, count(*)::text as rows
from staged s
group by s.kind
union all
select 'keys', count(distinct s.named)::text
from staged s
where s.kind not in ('X', 'D')
