-- name: list-finished
-- A page of finished jobs, newest first by id, which is by the time of their enqueue.
-- Locks: none.
-- Plan: job_history_id backwards in every day, merged.
-- No row: no such job is older than :after.
select h.tenant, h.id, h.queue, h.kind, h.outcome as state, h.priority, h.attempt, h.crashes, false as suspect, h.reason as last_error, h.holder,
  h.created_at, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id < coalesce(:after::bigint, 9223372036854775807)
  and (:state::text is null or h.outcome = :state::text)
  and (:kind::text is null or h.kind = :kind::text)
  and (:queue::text is null or h.queue = :queue::text)
order by h.id desc
limit :limit::integer

-- name: attempts
-- Every recorded attempt of one job, oldest first.
-- Locks: none.
-- Plan: job_attempt_job and job_history_id, in every partition: a clock that was set back lets attempts end before the day that the id carries.
-- No row: no attempt of it has ended yet.
select a.attempt, a.outcome, a.error, a.holder, a.fence, a.ended_at, a.ran_ms
from pawl.job_attempt a
where a.tenant = :tenant::text
  and a.job_id = :id::bigint
union all
select h.attempt, h.outcome, h.reason, h.holder, h.fence, h.finished_at, h.ran_ms
from pawl.job_history h
where h.tenant = :tenant::text
  and h.id = :id::bigint
order by ended_at, attempt

-- name: old-partitions
-- Partitions of the history that hold only days past their keep, detached ones left over from an interrupted removal included.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names, oldest first.
with parent as (
  select p.name, (pawl.now() at time zone 'UTC')::date - :keep_days::integer as until
  from (values ('job_history'), ('job_attempt')) p(name)
)
select p.name as parent, d.name, true as is_attached, d.is_detaching
from parent p
cross join lateral pawl.day_partitions(p.name) d
where d.from_at is not null
  and d.to_at <= p.until::timestamp at time zone 'UTC'
union all
select p.name, c.relname, false, false
from parent p
join pg_class c on c.relname ~ ('^' || p.name || '_[0-9]{8}$') and c.relkind = 'r' and not c.relispartition
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
order by 2

-- name: assert-completed
-- For a handler that called job.complete(tx): nothing commits unless that was in this transaction, or has committed in another. It runs in the
-- handler's search path, so every operator has its schema.
-- Locks: none.
-- Plan: job_history_id, in the partitions since the day before the job's id.
-- No row where the job is completed under this fence; else PW001 is raised.
select pawl.raise_lease_lost('job', :id::bigint, :fence::bigint)
where not exists (
  select
  from pawl.job_history h
  where h.tenant operator(pg_catalog.=) :tenant::pg_catalog.text
    and h.id operator(pg_catalog.=) :id::bigint
    and h.fence operator(pg_catalog.=) :fence::bigint
    and h.finished_at operator(pg_catalog.>=) (
      least(
        pg_catalog.to_timestamp((:id::bigint operator(pg_catalog.>>) 21) operator(pg_catalog./) 1000.0),
        (select pawl.now())
      ) operator(pg_catalog.-) interval '2 days'
    )
)
