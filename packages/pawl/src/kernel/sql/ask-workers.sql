-- Asks incarnations whether they live. A question that stands is left alone for 15 seconds: its asker may be about to close. The clock
-- may have been set back since then, so one from the future is replaced too.
-- Locks: their worker rows, SKIP LOCKED: one that is locked is about to beat or to be closed.
-- Plan: worker_pkey.
-- Rows: the incarnations that were asked.
update pawl.worker w
set asked_by = :question::uuid,
  asked_at = pawl.now()
where w.ctid = any (array(
    select k.ctid
    from pawl.worker k
    where k.tenant = ''
      and k.id = any (:workers::integer[])
      and k.closed_at is null
      and coalesce(k.asked_at not between (select pawl.now()) - interval '15 seconds' and (select pawl.now()), true)
    order by k.id
    for update skip locked
  ))
returning w.id
