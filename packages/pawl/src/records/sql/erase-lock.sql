-- Waits for the batches that are being staged for a scope, and holds its uploads back: a row of a batch that commits later would not be seen
-- by erase.sql. The caller holds the scope's lock.
-- Locks: the submission rows of uploads, FOR NO KEY UPDATE.
-- Plan: submission_open_of_scope.
-- Rows: one for each.
select u.id
from pawl.submission u
where u.tenant = :tenant::text
  and u.scope_id = :scope_id::bigint
  and u.state in ('uploading', 'validating')
order by u.id
for no key update
