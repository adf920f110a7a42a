-- Closes incarnations that did not answer a question: each only if the question in its row is still the one that was asked for so long.
-- Locks: their worker rows, SKIP LOCKED: one that is locked is about to answer.
-- Plan: worker_pkey.
-- Rows: the closed incarnations and why.
with closed as (
  update pawl.worker w
  set closed_at = pawl.now(),
    close_reason = (:reasons::text[])[array_position(:workers::integer[], w.id)]
  where w.ctid = any (array(
      select k.ctid
      from unnest(:workers::integer[], :questions::uuid[]) as g(id, question)
      join pawl.worker k on k.tenant = '' and k.id = g.id and k.asked_by = g.question
      where k.closed_at is null
      order by k.id
      for update of k skip locked
    ))
  returning w.id, w.close_reason
),
awake as (
  delete from pawl.sleeper s
  using closed x
  where s.tenant = ''
    and s.worker = x.id
)
select x.id, x.close_reason as reason
from closed x
