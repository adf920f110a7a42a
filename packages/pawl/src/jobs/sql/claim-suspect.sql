-- Claims jobs that died with their process: at most :limit beside other work, each kind up to its room; and at most one whose next crash
-- would be its last. ':deciding' says what becomes of that one: 'leave' it, run it 'alone' (if no other process has one), or claim 'only' such.
-- Locks: the job rows it takes, SKIP LOCKED; it waits for nobody.
-- Plan: job_suspect, then TID scans.
-- Rows: the claimed jobs, at least one row; each says what was left waiting. A row without an id: nothing was claimed.
with holder as materialized (
  select w.id, pawl.now() as now
  from pawl.worker w
  where w.tenant = ''
    and w.id = :worker::integer
    and w.nonce = :nonce::uuid
    and w.closed_at is null
),
-- The first of each queue, of kinds that have room: however many wait, few are read.
beside as materialized (
  select f.ctid, f.kind, f.due, f.id, row_number() over (partition by f.kind order by f.due, f.id) as number
  from unnest(:queues::text[]) q(name)
  cross join lateral (
    select j.ctid, j.kind, j.due, j.id
    from pawl.job j
    where j.queue = q.name
      and j.suspect
      and j.state = 'ready'
      and (:rooms::integer[])[array_position(:kinds::text[], j.kind)] > 0
      and j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1
    order by j.due, j.id
    limit case when :limit::integer > 0 then 4 * :limit::integer + 16 else 0 end
  ) f
  where exists (select from holder)
),
-- Those whose next crash would be their last are looked for among the first thousand suspects of each queue.
deciding as materialized (
  select f.ctid, f.due, f.id
  from unnest(:queues::text[]) q(name)
  cross join lateral (
    select j.ctid, j.due, j.id, j.crashes - j.excused >= (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1 as is_deciding
    from pawl.job j
    where j.queue = q.name
      and j.suspect
      and j.state = 'ready'
      and j.kind = any (:kinds::text[])
    order by j.due, j.id
    limit 1000
  ) f
  where f.is_deciding
    and exists (select from holder)
  order by f.due, f.id
  limit 2
),
chosen as materialized (
  (
    select n.ctid
    from beside n
    where n.number <= (:rooms::integer[])[array_position(:kinds::text[], n.kind)]
    order by n.due, n.id
    limit :limit::integer
  )
  union all
  (
    select n.ctid
    from deciding n
    where :deciding::text <> 'leave'
      and (
        :deciding::text = 'only'
        or not exists (
          select
          from pawl.job r
          where r.queue = any (:queues::text[])
            and r.suspect
            -- It runs. A test of the state would let the planner walk job_held from end to end.
            and r.holder is not null
            and r.crashes - r.excused >= r.max_crashes - 1
        )
      )
    order by n.due, n.id
    limit 1
  )
),
picked as materialized (
  select j.ctid
  from pawl.job j
  where j.ctid = any (array(select c.ctid from chosen c))
    -- As one value, or the planner may walk job_suspect from end to end.
    and (j.suspect and j.state = 'ready') is true
  for update skip locked
),
claimed as (
  update pawl.job j
  set state = 'running',
    fence = (select pawl.next_fence()),
    holder = h.id,
    attempt = j.attempt + 1,
    revision = j.revision + 1,
    -- One that must run alone is only held as yet: start-alone.sql says when it starts.
    claimed_at = case when j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1 then h.now end,
    max_attempts = coalesce(j.given_attempts, (:max_attempts::integer[])[array_position(:kinds::text[], j.kind)]),
    max_crashes = (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)],
    -- The time that its process may take to empty itself does not count against the job's timeout.
    run_until = h.now + ((:timeouts_ms::bigint[])[array_position(:kinds::text[], j.kind)] + :drain_ms::bigint) * interval '1 millisecond'
  from holder h
  where j.ctid = any (array(select p.ctid from picked p))
    and j.state = 'ready'
  returning j.tenant, j.id, j.fence, j.queue, j.kind, j.payload::text as payload, j.payload_version, j.attempt, j.max_attempts, j.crashes,
    j.headers::text as headers, case when isfinite(j.due) then (date_part('epoch', j.due) * 1000000)::bigint end as due_us,
    j.crashes - j.excused >= j.max_crashes - 1 as is_deciding
),
remaining as (
  select exists (
      select
      from unnest(:queues::text[]) q(name)
      cross join lateral (
        select
        from pawl.job j
        where j.queue = q.name
          and j.suspect
          and j.state = 'ready'
          and j.crashes - j.excused < (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1
          and j.ctid <> all (array(select c.ctid from chosen c))
        order by j.due, j.id
        limit 1
      ) f
      where exists (select from holder)
    ) as is_suspect_left,
    exists (select from deciding d where d.ctid <> all (array(select c.ctid from chosen c))) as is_deciding_left
)
select r.is_suspect_left, r.is_deciding_left, c.tenant, c.id, c.fence, c.queue, c.kind, c.payload, c.payload_version, c.attempt, c.max_attempts,
  c.crashes, c.headers, c.due_us, c.is_deciding
from remaining r
left join claimed c on true
