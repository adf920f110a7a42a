-- Makes a dead or scheduled job ready now. A dead one starts over with all its attempts.
-- Locks: the job row, by primary key, and no alert: the caller's transaction may stay open, and whoever raises that alert would wait.
-- Plan: job_pkey.
-- No row: it is not dead or scheduled, or :revision is given and is not its current one.
with changed as (
  update pawl.job j
  set state = 'ready',
    run_at = pawl.now(),
    due = pawl.now() - j.priority * interval '1 minute',
    attempt = case when j.state = 'dead' then 0 else j.attempt end,
    crashes = case when j.state = 'dead' then 0 else j.crashes end,
    excused = case when j.state = 'dead' then 0 else j.excused end,
    suspect = j.suspect or (j.state = 'dead' and j.crashes > j.excused),
    fence = pawl.next_fence(),
    revision = j.revision + 1
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and j.state in ('dead', 'scheduled')
    and (:revision::integer is null or j.revision = :revision::integer)
  returning j.queue, j.revision
)
select o.revision, case when :wake::boolean then pawl.wake(o.queue) is null end as woke
from changed o
