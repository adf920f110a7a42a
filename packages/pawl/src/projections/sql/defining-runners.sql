-- Living processes whose code defines a projection or sink, whichever generation of it.
-- Locks: none.
-- Plan: pawl.live_workers(), worker_process_pkey.
-- No row: none does.
select p.id, p.name
from pawl.worker_process p
where p.tenant = ''
  and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
  and exists (
    select
    from unnest(p.kinds) k(kind)
    where starts_with(k.kind, :prefix::text)
      and substr(k.kind, length(:prefix::text) + 1) ~ '^[0-9]+$'
  )
order by p.id
limit 5
