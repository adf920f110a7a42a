-- What a submission needs: its state, and how long until it expires.
-- Locks: none.
-- Plan: submission_pkey.
-- No row: it is gone.
select u.state, u.record_set, (extract(epoch from u.expires_at - pawl.now()) * 1000)::bigint::text as expires_in_ms
from pawl.submission u
where u.tenant = :tenant::text
  and u.id = :id::bigint
