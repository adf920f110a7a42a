-- Removes staged rows that name a record which was erased after the rows were received, from whatever upload they came, and their errors.
-- Locks: those rows.
-- Plan: submission_pkey, submission_row_pkey, submission_error_pkey. Erasures by record_erasure_of_scope.
-- One row: how many they were, and one of them; 0 almost always, and then no staged row is read.
with erased as materialized (
  select e.type, e.key
  from pawl.submission u
  join pawl.record_erasure e on e.tenant = u.tenant and e.scope_id = u.scope_id and e.revision > u.received_at_revision
  where u.tenant = :tenant::text
    and u.id = :id::bigint
),
gone as (
  delete from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and (select count(*) from erased) > 0
    and (r.type, r.key) in (select e.type, e.key from erased e)
  returning r.line, r.type, r.key
),
quoted as (
  delete from pawl.submission_error q
  using gone g
  where q.tenant = :tenant::text
    and q.submission = :id::bigint
    and q.line = g.line
)
select count(*)::integer as rows, min(g.type) as type, min(g.key) as key
from gone g
