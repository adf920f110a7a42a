-- Cancels a job in any live state. A running one is taken from its holder: its late result finds no row.
-- Locks: the job row, by primary key, and no alert: the caller's transaction may stay open, and whoever raises that alert would wait.
-- Plan: job_pkey.
-- No row: it is not live, or :revision is given and is not its current one.
with gone as (
  delete from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :id::bigint
    and (:revision::integer is null or j.revision = :revision::integer)
  returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
    j.payload, j.headers, j.progress, j.state
),
kept as (
  insert into pawl.job_history (id, fence, created_at, finished_at, holder, attempt, crashes, priority, payload_version, tenant, queue, kind,
    outcome, payload, headers, progress, reason)
  select o.id, o.fence, o.created_at, pawl.now(), o.holder, o.attempt, o.crashes, o.priority, o.payload_version, o.tenant, o.queue, o.kind,
    'cancelled', o.payload, o.headers, o.progress, left(:reason::text, 2000)
  from gone o
)
select o.state, o.holder,
  case when o.holder is not null and :wake::boolean then pg_notify('pawl_lost', o.holder::text) is null end as told
from gone o
