-- Stores the progress of a running job; a null leaves the last one, and only says that it goes on.
-- Locks: the job row, SKIP LOCKED: a transaction that guards the job is not waited for.
-- Plan: job_pkey.
-- One row: 'stored', 'busy' (its own transaction has it locked; try again later) or 'lost'.
with mine as materialized (
  select j.ctid
  from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and j.fence = :fence::bigint
  for no key update skip locked
),
stored as (
  update pawl.job j
  set progress = coalesce(:progress::jsonb, j.progress),
    progress_at = pawl.now()
  where j.ctid = any (array(select m.ctid from mine m))
    and j.fence = :fence::bigint
  returning 1
)
select case
    when exists (select from stored) then 'stored'
    when exists (select from pawl.job j where j.tenant = :tenant::text and j.id = :id::bigint and j.fence = :fence::bigint) then 'busy'
    else 'lost'
  end as answer
