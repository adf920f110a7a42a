-- Stores row errors.
-- Locks: none that others wait for.
-- Plan: an insert.
-- No row is returned.
insert into pawl.submission_error (tenant, submission, ordinal, line, code, field, value, reason)
select :tenant::text, :id::bigint, :first::bigint + e.ordinal, (e.value ->> 'line')::bigint, e.value ->> 'code', e.value ->> 'column', e.value ->> 'value',
  e.value ->> 'reason'
from jsonb_array_elements(:errors::jsonb) with ordinality as e(value, ordinal)
