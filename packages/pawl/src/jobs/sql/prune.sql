-- Removes what is past its keep: expired once keys, old evidence, long closed workers, resolved alerts, at most :limit of each; and all
-- sleepers whose worker is closed (it lay down at that very moment). A closed worker that holds something although it was found to hold
-- nothing (the clock was set forward in between) is shown to the sweeps again.
-- Locks: those rows; once keys, workers and alerts with SKIP LOCKED.
-- Plan: once_expiry and primary keys.
-- One row: how many rows went.
with expired as (
  delete from pawl.once o
  where o.ctid = any (array(
    select k.ctid from pawl.once k where k.expires_at < (select pawl.now()) limit :limit::integer for update skip locked
  ))
  returning 1
),
evidence as (
  delete from pawl.refusal r
  where r.ctid = any (array(
    select k.ctid from pawl.refusal k where k.tenant >= '' order by k.id desc offset 10000 limit :limit::integer
  ))
  returning 1
),
workers as (
  delete from pawl.worker w
  where w.ctid = any (array(
    select k.ctid
    from pawl.worker k
    where k.closed_at < (select pawl.now()) - interval '7 days'
      and (select true from pawl.job j where j.state = 'running' and j.holder = k.id limit 1) is null
    limit :limit::integer
    for update skip locked
  ))
  returning w.tenant, w.id
),
processes as (
  delete from pawl.worker_process p
  using workers w
  where p.tenant = w.tenant
    and p.id = w.id
),
alerts as (
  delete from pawl.alert a
  where a.ctid = any (array(
    select k.ctid from pawl.alert k where k.resolved_at < (select pawl.now()) - interval '30 days' limit :limit::integer for update skip locked
  ))
  returning 1
),
sleepers as (
  delete from pawl.sleeper s
  where s.worker <> all (array(select w.id from pawl.live_workers() w where w.closed_at is null))
  returning 1
),
stranded as (
  update pawl.worker w
  set emptied_at = null
  where w.emptied_at is not null
    and (select true from pawl.job j where j.state = 'running' and j.holder = w.id limit 1)
)
select (select count(*) from expired) + (select count(*) from evidence) + (select count(*) from workers) + (select count(*) from alerts)
  + (select count(*) from sleepers) as removed
