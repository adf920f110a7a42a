-- Resolves the alert of every kind that an open worker takes again or that was not seen waiting for ten minutes, those of time-outs and of
-- jobs that could not run alone that have not come again for an hour, and those of failing statements that no process has refreshed for
-- ten minutes.
-- Locks: those alert rows.
-- Plan: the few open alerts.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.resolved_at is null
  and (
    a.code in ('job.timed-out', 'job.postponed') and a.last_at < pawl.now() - interval '1 hour'
    or a.code in ('kind.unknown', 'engine.failing') and a.last_at < pawl.now() - interval '10 minutes'
    or a.code = 'kind.unknown' and exists (
      select
      from pawl.worker_process p, unnest(p.kinds) k
      where p.tenant = ''
        and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
        and (a.subject = k or a.subject in (select format('%s in queue %s', k, q) from unnest(p.queues) q))
    )
  )
