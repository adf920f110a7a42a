-- name: open-worker
-- Opens a new incarnation of a worker and starts its lease. Others may have to give cursors back, and are notified.
-- Locks: none but its own new rows.
-- Plan: two inserts.
-- One row: its id, and the nonce that each of its own writes names beside it.
with opened as (
  insert into pawl.worker (look_ms, lease_until)
  values (:look_ms::integer, pawl.now() + :lease_ms::bigint * interval '1 millisecond')
  returning id, nonce
),
described as (
  insert into pawl.worker_process (id, name, host, pid, release, queues, kinds, concurrency, sessions)
  select o.id, :name::text, :host::text, :pid::integer, :release::text, :queues::text[], :kinds::text[], :concurrency::integer,
    :sessions::text
  from opened o
)
select o.id, o.nonce, pg_notify('pawl_workers', '') is null as told
from opened o

-- name: beat
-- Renews the lease of an incarnation, and with it of everything that it holds, and answers a watcher's question. Also after the lease ended.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row: the incarnation was closed. The worker goes on under a new one.
update pawl.worker w
set seen_at = pawl.now(),
  lease_until = pawl.now() + :lease_ms::bigint * interval '1 millisecond',
  asked_by = null,
  asked_at = null
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and w.closed_at is null
returning w.id

-- name: look-worker
-- Reads the incarnation's own row: whether it is still open, and whether a watcher asks if it lives.
-- Locks: none.
-- Plan: worker_pkey.
-- No row: the incarnation was closed. The worker goes on under a new one.
select w.asked_by is not null as is_asked
from pawl.worker w
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and w.closed_at is null

-- name: lock-worker
-- Says that an incarnation holds its liveness lock. Only from now on does a free lock raise a question.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row is returned.
update pawl.worker w
set locks = true
where w.tenant = ''
  and w.id = :worker::integer
  and w.nonce = :nonce::uuid
  and not w.locks

-- name: ask-workers
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

-- name: close-dead-workers
-- Closes incarnations that did not answer a question: each only if the question in its row is still the one that was asked then.
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
select x.id, x.close_reason as reason, pg_notify('pawl_workers', '') is null as told
from closed x

-- name: close-worker
-- Closes an incarnation, by its own process; it never opens again. What it still holds is taken over by the next rescue; its cursors are free.
-- Locks: its worker row.
-- Plan: worker_pkey.
-- No row: it was closed already.
with closed as (
  update pawl.worker w
  set closed_at = pawl.now(),
    close_reason = :reason::text
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
  returning w.id
),
awake as (
  delete from pawl.sleeper s
  using closed x
  where s.tenant = ''
    and s.worker = x.id
)
select c.id, pg_notify('pawl_workers', '') is null as told
from closed c

-- name: end-sessions
-- Ends the sessions of handlers and claims that closed incarnations left inside a transaction. A process that is paused cannot end them, and their row
-- locks would block the worker that takes its jobs over for as long. A transaction that began after the close is another incarnation's.
-- Locks: none.
-- Plan: worker_process_pkey, then the list of sessions. Found first and ended then: a condition would be tried on every session of the server.
-- Rows: the sessions that were ended.
with found as materialized (
  select a.pid
  from unnest(:workers::integer[]) g(id)
  join pawl.worker w on w.tenant = '' and w.id = g.id and w.closed_at is not null
  join pawl.worker_process p on p.tenant = '' and p.id = w.id and p.sessions <> ''
  join pg_catalog.pg_stat_activity a
    on right(a.application_name, length(p.sessions)) = p.sessions
    and a.datname = current_database()
    and a.usename = current_user
    and a.xact_start < w.closed_at
)
select f.pid, pg_catalog.pg_terminate_backend(f.pid) as is_ended
from found f

-- name: empty-workers
-- Notes of closed incarnations that they were found to hold nothing, so that sweeps pass over them.
-- Locks: their worker rows.
-- Plan: worker_live.
-- No row is returned.
update pawl.worker w
set emptied_at = pawl.now()
where w.tenant = ''
  and w.id = any (:workers::integer[])
  and w.closed_at is not null
  and w.emptied_at is null

-- name: take-liveness
-- Takes the lock that says that an incarnation's process is alive. It belongs to the session.
-- Locks: the advisory lock, without waiting.
-- Plan: a call.
-- One row: whether it was free.
select pg_try_advisory_lock(:class::integer, :worker::integer) as taken
