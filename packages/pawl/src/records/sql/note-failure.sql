-- Keeps what a failed attempt of the apply said, for `why`; the submission goes on.
-- Locks: the submission row.
-- Plan: its own submission by the slot or the primary key.
-- No row: it is not submitting under this number.
update pawl.submission u
set failures = u.failures + 1,
  failure_class = :failure_class::text,
  error = left(:error::text, 2000)
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
returning u.failures
