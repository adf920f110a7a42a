-- Excuses the crashes that were counted when this incarnation was closed as dead: its process lives, and was only cut off from the database. One
-- that was silent for a whole lease is not excused: what froze it may be the job. Each recorded attempt is 'interrupted' from then on, so that
-- none is excused twice. Who holds the job now, and its state, stay as they are; a job that
-- the crash made dead stays dead, for that has been told, and says so.
-- Locks: the job rows, SKIP LOCKED, then those attempts.
-- Plan: pawl.worker by primary key, job_attempt_job, job_pkey.
-- Rows: the jobs to be asked for again: not taken over yet, or locked.
with given as materialized (
  select g.tenant, g.id, g.fence
  from unnest(:tenants::text[], :ids::bigint[], :fences::bigint[]) as g(tenant, id, fence)
  where exists (
    select
    from pawl.worker w
    where w.tenant = ''
      and w.id = :worker::integer
      and w.nonce = :nonce::uuid
      and w.close_reason = 'process died'
  )
  order by g.tenant, g.id
),
crashed as materialized (
  select a.tenant, a.job_id, a.fence, a.ended_at, a.error,
    -- An orderly end since then has excused it already.
    not exists (
      select
      from pawl.job_attempt o
      where o.tenant = a.tenant
        and o.job_id = a.job_id
        and o.ended_at > a.ended_at
        and o.outcome in ('failed', 'timed out', 'invalid')
    ) as counts
  from given g
  join pawl.job_attempt a on a.tenant = g.tenant and a.job_id = g.id and a.fence = g.fence
  where a.outcome = 'crashed'
    and a.ended_at >= least(to_timestamp((g.id >> 21) / 1000.0), (select pawl.now())) - interval '2 days'
),
free as materialized (
  select j.tenant, j.id, c.counts, c.error
  from crashed c
  join pawl.job j on j.tenant = any (array[c.tenant]) and j.id = c.job_id
  for no key update of j skip locked
),
excused as (
  update pawl.job j
  set excused = least(j.crashes, j.excused + 1),
    last_error = j.last_error || case when j.state = 'dead' and j.last_error = f.error then '; it is alive and was only cut off from the database' else '' end
  from free f
  -- By its key: one that was claimed since this statement began has another ctid, and would be recorded as excused without being so.
  where j.tenant = any (array[f.tenant])
    and j.id = f.id
    and f.counts
),
recorded as (
  update pawl.job_attempt a
  set outcome = 'interrupted',
    error = c.error || '; it is alive and was only cut off from the database'
  from crashed c
  where a.tenant = c.tenant
    and a.job_id = c.job_id
    and a.fence = c.fence
    and a.ended_at = c.ended_at
    and a.outcome = 'crashed'
    and (
      exists (select from free f where f.tenant = c.tenant and f.id = c.job_id)
      or not exists (select from pawl.job j where j.tenant = any (array[c.tenant]) and j.id = c.job_id)
    )
)
select g.tenant, g.id
from given g
join pawl.job j on j.tenant = any (array[g.tenant]) and j.id = g.id
where j.fence = g.fence
  or exists (select from crashed c where c.tenant = g.tenant and c.job_id = g.id)
    and not exists (select from free f where f.tenant = g.tenant and f.id = g.id)
