-- Gives back what this incarnation holds without knowing it: a claim whose answer was lost. No attempt is burnt, and
-- others hear of them.
-- Locks: those job rows, SKIP LOCKED.
-- Plan: job_held, then a TID scan. A second test of the state there would let the planner walk job_held instead.
-- Rows: the jobs given back; none also where the incarnation is closed, whose jobs a rescue takes.
with released as (
  update pawl.job j
  set state = 'ready',
    attempt = j.attempt - 1,
    fence = pawl.next_fence(),
    revision = j.revision + 1,
    holder = null,
    run_until = null,
    claimed_at = null
  where j.ctid = any (array(
      select k.ctid
      from pawl.job k
      where k.state = 'running'
        and k.holder = :worker::integer
        and (k.id, k.fence) not in (select g.id, g.fence from unnest(:ids::bigint[], :fences::bigint[]) as g(id, fence))
        and exists (
          select
          from pawl.worker w
          where w.tenant = ''
            and w.id = :worker::integer
            and w.nonce = :nonce::uuid
            and w.closed_at is null
        )
      order by k.id
      for update skip locked
    ))
  returning j.tenant, j.id, j.queue
)
select r.tenant, r.id, pawl.wake(r.queue) is null as woke
from released r
