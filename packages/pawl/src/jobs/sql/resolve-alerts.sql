-- Resolves the alert of every kind that an open worker defines again, and those of time-outs that have not come again for an hour.
-- Locks: those alert rows.
-- Plan: the few open alerts.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.resolved_at is null
  and (
    a.code = 'job.timed-out' and a.last_at < pawl.now() - interval '1 hour'
    or a.code = 'kind.unknown' and exists (
      select
      from pawl.worker w
      where w.tenant = ''
        and w.closed_at is null
        and a.subject = any (w.kinds)
    )
  )
