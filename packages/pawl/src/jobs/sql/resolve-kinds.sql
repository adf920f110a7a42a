-- Resolves the alert of every kind that an open worker defines again.
-- Locks: those alert rows.
-- Plan: the few open alerts.
-- No row is returned.
update pawl.alert a
set resolved_at = pawl.now()
where a.code = 'kind.unknown'
  and a.resolved_at is null
  and exists (
    select
    from pawl.worker w
    where w.tenant = ''
      and w.closed_at is null
      and a.subject = any (w.kinds)
  )
