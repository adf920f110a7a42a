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
suspects as materialized (
  select j.ctid, j.kind, j.due, j.id,
    j.crashes - j.excused >= (:max_crashes::integer[])[array_position(:kinds::text[], j.kind)] - 1 as is_deciding
  from pawl.job j
  where j.queue = any (:queues::text[])
    and j.suspect
    and j.state = 'ready'
    and j.kind = any (:kinds::text[])
    and exists (select from holder)
),
numbered as materialized (
  select s.ctid, s.kind, s.due, s.id, s.is_deciding, row_number() over (partition by s.kind, s.is_deciding order by s.due, s.id) as number
  from suspects s
),
chosen as materialized (
  (
    select n.ctid
    from numbered n
    where not n.is_deciding
      and n.number <= (:rooms::integer[])[array_position(:kinds::text[], n.kind)]
    order by n.due, n.id
    limit :limit::integer
  )
  union all
  (
    select n.ctid
    from numbered n
    where n.is_deciding
      and :deciding::text <> 'leave'
      and (
        :deciding::text = 'only'
        or not exists (
          select
          from pawl.job r
          where r.queue = any (:queues::text[])
            and r.suspect
            and r.state = 'running'
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
    and j.suspect
    and j.state = 'ready'
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
    j.headers, case when isfinite(j.due) then (date_part('epoch', j.due) * 1000000)::bigint end as due_us,
    j.crashes - j.excused >= j.max_crashes - 1 as is_deciding
),
remaining as (
  select count(*) filter (where not n.is_deciding) > 0 as is_suspect_left, count(*) filter (where n.is_deciding) > 0 as is_deciding_left
  from numbered n
  where n.ctid <> all (array(select c.ctid from chosen c))
)
select r.is_suspect_left, r.is_deciding_left, c.tenant, c.id, c.fence, c.queue, c.kind, c.payload, c.payload_version, c.attempt, c.max_attempts,
  c.crashes, c.headers, c.due_us, c.is_deciding
from remaining r
left join claimed c on true
