-- Makes a dead or scheduled job ready now. A dead one starts over with all its attempts.
-- Locks: the job row, by primary key.
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
    fence = nextval('pawl.fence'),
    revision = j.revision + 1
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and j.state in ('dead', 'scheduled')
    and (:revision::integer is null or j.revision = :revision::integer)
  returning j.tenant, j.id, j.kind, j.queue, j.revision
),
resolved as (
  update pawl.alert a
  set resolved_at = pawl.now()
  from changed o
  where a.tenant = o.tenant
    and a.code = 'job.dead'
    and a.subject = o.kind
    and a.resolved_at is null
    and not exists (select from pawl.job d where d.tenant = o.tenant and d.kind = o.kind and d.state = 'dead' and d.id <> o.id)
)
select o.revision, pawl.wake(o.queue) is null as woke
from changed o
