-- name: insert-items
-- Adds items, numbered from :after on.
-- Locks: none but its own new rows.
-- Plan: an insert.
-- One row: how many.
with added as (
  insert into pawl.batch_item (tenant, batch_id, n, key, data, units, before)
  select :tenant::text, :id::bigint, :after::integer + i.number, i.value ->> 'key', i.value -> 'data', coalesce((i.value ->> 'units')::double precision, 0),
    i.value -> 'before'
  from jsonb_array_elements(:items::jsonb) with ordinality i(value, number)
  returning 1
)
select count(*)::integer as added
from added

-- name: insert-rerun-items
-- Copies items of an ended batch into the one that runs them again, without keys that a later batch of its name has done.
-- Locks: none but its own new rows.
-- Plan: batch_pkey, batch_item_pkey, batch_item_tenant_key_batch_id_key.
-- No row: it has not ended, or no item is left to run again.
with new as materialized (
  select pawl.next_job_id() as id
),
added as (
  insert into pawl.batch_item (tenant, batch_id, n, key, data, units, before)
  select i.tenant, x.id, row_number() over (order by i.n), i.key, i.data, i.units, i.before
  from new x
  cross join pawl.batch b
  join pawl.batch_item i on i.tenant = b.tenant and i.batch_id = b.id
  where b.tenant = :tenant::text
    and b.id = :of::bigint
    and b.ended_at is not null
    and coalesce(i.outcome, 'unfinished') = any (:only::text[])
    and not exists (
      select
      from pawl.batch_item l
      join pawl.batch m on m.tenant = l.tenant and m.id = l.batch_id and m.name = b.name
      where l.tenant = i.tenant
        and l.key = i.key
        and l.batch_id > i.batch_id
        and l.outcome = 'done'
    )
  returning batch_id
)
select a.batch_id::text as id
from added a
limit 1

-- name: settle-items
-- Settles a flush of items as done, with their jobs.
-- Locks: the batches, shared and tried; the job rows by id; the item rows.
-- Plan: a call.
-- One row: how many. The others are late, refused, or left because their batch is being ended.
select count(*)::integer as settled
from pawl.settle_items(:tenants::text[], :ids::bigint[], :fences::bigint[], :results::jsonb[], :progress::jsonb[], :ran_ms::integer[],
  :batches::bigint[], :numbers::integer[], :batch_fences::bigint[])

-- name: settle-dead-items
-- Settles a flush of items as failed, with their jobs.
-- Locks: as settle-items.
-- Plan: a call.
-- Rows: the settled ones.
select s.tenant, s.id
from pawl.settle_items(:tenants::text[], :ids::bigint[], :fences::bigint[], '{}', :progress::jsonb[], :ran_ms::integer[],
  :batches::bigint[], :numbers::integer[], :batch_fences::bigint[], :outcomes::text[], :errors::text[]) s

-- name: complete-item
-- Settles one item as done in the transaction of its effects.
-- Locks: the batch, shared and tried; its job's row; its row.
-- Plan: a call.
-- One row, without meaning; PW001 where its fence or its batch's is not the current one, 55P03 where its batch is being ended.
select pawl.complete_item(:tenant::text, :id::bigint, :fence::bigint, :result::jsonb, :ran_ms::integer, :progress::jsonb,
  (:batches::bigint[])[1], (:numbers::integer[])[1], (:batch_fences::bigint[])[1])::text as completed

-- name: guard-item
-- Asserts that an item is still held and its batch runs, until the transaction ends.
-- Locks: the batch, shared and tried; its job's row.
-- Plan: a call.
-- One row, without meaning; errors as complete-item.
select pawl.guard_item(:tenant::text, :id::bigint, :fence::bigint, (:batches::bigint[])[1], (:batch_fences::bigint[])[1])::text as held

-- name: note-late
-- Notes that the handler of an item answered after its batch had ended.
-- Locks: its row.
-- Plan: batch_pkey, batch_item_pkey.
-- No row: the batch has not ended, or it is noted already.
update pawl.batch_item i
set late_at = pawl.now()
from pawl.batch b
where b.tenant = :tenant::text
  and b.id = :id::bigint
  and b.ended_at is not null
  and i.tenant = b.tenant
  and i.batch_id = b.id
  and i.n = :n::integer
  and i.outcome is null
  and i.late_at is null
returning i.n

-- name: fail-lost
-- Fails items whose jobs are dead or gone.
-- Locks: the batch, shared and tried; the item rows; the dead job rows, SKIP LOCKED.
-- Plan: a call.
-- One row: how many; null: the batch is being ended.
select pawl.fail_lost_items(:tenant::text, :id::bigint, :fence::bigint) as failed

-- name: clear-items
-- Cancels jobs of an ended batch: of the next 1,000 items that have not ended, and of the step that its end interrupted.
-- Locks: the job rows by id, SKIP LOCKED.
-- Plan: batch_item_pkey, job_pkey.
-- One row: the last item of them (null: there are no more), and how many jobs were locked.
with next as materialized (
  select i.n, i.job_id
  from pawl.batch_item i
  join pawl.batch b on b.tenant = i.tenant and b.id = i.batch_id
  where i.tenant = :tenant::text
    and i.batch_id = :id::bigint
    and i.n > :after::integer
    and i.n <= b.fed
    and i.outcome is null
  order by i.n
  limit 1000
),
live as materialized (
  select j.id
  from next x
  join pawl.job j on j.tenant = :tenant::text and j.id = x.job_id
  union all
  select j.id
  from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :step::bigint
)
select (select max(x.n) from next x) as last,
  (select count(*) from live l)::integer
    - (select count(*) from pawl.cancel_jobs(:tenant::text, array(select l.id from live l), 'its batch has ended', p_wait => false))::integer as locked

-- name: to-restore
-- The next 100 items of a batch that ended before its boundary, marked as restored in the transaction that restores them.
-- Locks: those rows.
-- Plan: batch_item_pkey.
-- Rows: the items; fewer than 100: the last ones.
update pawl.batch_item i
set restored_at = pawl.now()
from (
  select x.n
  from pawl.batch_item x
  where x.tenant = :tenant::text
    and x.batch_id = :id::bigint
    and x.n > :after::integer
    and x.restored_at is null
  order by x.n
  limit 100
) r
where i.tenant = :tenant::text
  and i.batch_id = :id::bigint
  and i.n = r.n
returning i.n, i.key, i.data, i.before

-- name: items
-- A page of items in their order.
-- Locks: none.
-- Plan: batch_item_pkey.
-- No row: no such items beyond :after.
select i.batch_id as batch, i.n, i.key, i.data, i.before, i.outcome, i.sums, i.error, i.job_id, i.ended_at, i.late_at, i.restored_at
from pawl.batch_item i
where i.tenant = :tenant::text
  and i.batch_id = :id::bigint
  and i.n > :after::integer
  and case :outcome::text
    when 'waiting' then i.outcome is null
    when 'late' then i.late_at is not null
    else :outcome::text is null or i.outcome = :outcome::text
  end
order by i.n
limit :limit::integer

-- name: stuck
-- Items that no batch has brought to an end: the latest of their key, unfinished in a batch that has ended or is overdue, or with a dead job.
-- Locks: none.
-- Plan: batch_pkey backwards, batch_item_pkey, batch_item_tenant_key_batch_id_key, job_pkey.
-- No row: nothing is stuck beyond :after_batch and :after_n.
select i.batch_id as batch, i.n, i.key, i.data, i.before, i.outcome, i.sums, i.error, i.job_id, i.ended_at, i.late_at, i.restored_at, b.name, b.state,
  case when j.state = 'dead' then 'dead' else 'unfinished' end as reason
from pawl.batch b
join pawl.batch_item i on i.tenant = b.tenant and i.batch_id = b.id
left join pawl.job j on j.tenant = i.tenant and j.id = i.job_id
where b.tenant = :tenant::text
  and (:name::text is null or b.name = :name::text)
  and b.state not in ('queued', 'finished')
  and (b.id, -i.n) < (coalesce(:after_batch::bigint, 9223372036854775807), -:after_n::integer)
  and i.outcome is null
  and (
    j.state = 'dead'
    or coalesce(b.ended_at, b.deadline) <= pawl.now() - :older_ms::bigint * interval '1 millisecond'
  )
  and not exists (
    select
    from pawl.batch_item l
    join pawl.batch m on m.tenant = l.tenant and m.id = l.batch_id and m.name = b.name
    where l.tenant = i.tenant
      and l.key = i.key
      and l.batch_id > i.batch_id
  )
order by b.id desc, i.n
limit :limit::integer

-- name: item-jobs
-- The jobs of items that have not ended, by their state.
-- Locks: none.
-- Plan: batch_item_pkey, job_pkey.
-- Rows: the states.
select j.state, count(*)::integer as count, max(j.last_error) as error
from pawl.batch_item i
join pawl.job j on j.tenant = i.tenant and j.id = i.job_id
where i.tenant = :tenant::text
  and i.batch_id = :id::bigint
  and i.outcome is null
group by j.state
order by j.state

-- name: remove-items
-- Removes items of a closed batch.
-- Locks: those rows.
-- Plan: batch_item_pkey.
-- One row: how many.
with removed as (
  delete from pawl.batch_item i
  where i.tenant = :tenant::text
    and i.batch_id = :id::bigint
    and i.n in (select x.n from pawl.batch_item x where x.tenant = :tenant::text and x.batch_id = :id::bigint order by x.n limit :limit::integer)
  returning 1
)
select count(*)::integer as removed
from removed
