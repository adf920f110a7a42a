-- A page of the stored row errors of a submission.
-- Locks: none.
-- Plan: submission_error_pkey.
-- Rows: the next ones after :after.
select e.ordinal::text as ordinal, e.line::text as line, e.code, e.field, e.value, e.reason
from pawl.submission_error e
where e.tenant = :tenant::text
  and e.submission = :id::bigint
  and e.ordinal > :after::bigint
order by e.ordinal
limit :limit::integer
