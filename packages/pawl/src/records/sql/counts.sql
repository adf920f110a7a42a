-- How many rows of each kind are staged; and, as the kind 'keys', how many different records they name. That is counted by a hash, which
-- can only be too small: then duplicates.sql looks closely.
-- Locks: none.
-- Plan: submission_row_pkey.
-- Rows: one per kind, and one for the keys.
select r.kind, count(*)::text as rows
from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = :id::bigint
group by r.kind
union all
select 'keys', count(distinct hashtextextended(r.key, hashtext(r.type)))::text
from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.kind not in ('X', 'D')
