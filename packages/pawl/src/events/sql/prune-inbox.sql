-- Forgets ids of outside events that are past their time.
-- Locks: those rows, SKIP LOCKED.
-- Plan: inbox_expiry.
-- One row: how many went.
with gone as (
  delete from pawl.inbox i
  where i.ctid = any (array(
    select k.ctid from pawl.inbox k where k.expires_at < (select pawl.now()) limit :limit::integer for update skip locked
  ))
  returning 1
)
select count(*)::integer as removed
from gone
