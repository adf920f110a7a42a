-- Batches: many items as one run. A track runs one batch at a time, until its items have ended or its deadline has passed.

create table pawl.batch (
  id bigint not null default pawl.next_job_id(),
  fence bigint,
  job_id bigint,
  rerun_of bigint,
  allowance_ms bigint not null,
  units double precision not null default 0,
  created_at timestamptz not null default pawl.now(),
  started_at timestamptz,
  deadline timestamptz,
  boundary_at timestamptz,
  ending_until timestamptz,
  ended_at timestamptz,
  closed_at timestamptz,
  revision integer not null default 1,
  total integer not null default 0,
  fed integer not null default 0,
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  track text collate "C" not null,
  queue text collate "C" not null,
  policy text not null,
  state text collate "C" not null default 'queued',
  step text not null,
  allowance jsonb not null,
  prepared jsonb,
  boundary_sums jsonb,
  meta jsonb,
  by text,
  end_reason text,
  primary key (tenant, id),
  constraint state_known check (state in ('queued', 'running', 'finished', 'timed-out', 'replaced', 'cancelled', 'failed')),
  constraint running_has_deadline check (state <> 'running' or (deadline is not null and started_at is not null and fence is not null)),
  constraint ended_has_time check ((state in ('queued', 'running')) = (ended_at is null)),
  constraint policy_known check (policy in ('refuse', 'queue', 'replace')),
  constraint fed_within_total check (fed between 0 and total),
  constraint boundary_before_items check (fed = 0 or boundary_at is not null)
);
create unique index batch_running on pawl.batch (tenant, track) where state = 'running';
create index batch_queued on pawl.batch (tenant, track, id) where state = 'queued';
create index batch_open on pawl.batch (name, tenant, id) where closed_at is null and state <> 'queued';
comment on table pawl.batch is 'One row per batch. Transitions and steps write it; items never do. Counts and sums are derived from pawl.batch_item.';
comment on column pawl.batch.fence is 'Drawn when it starts to run. Its steps and items name it in every write.';
comment on column pawl.batch.step is 'The step it is at: prepare, step (the boundary, then feeding) or end.';
comment on column pawl.batch.job_id is 'The job of that step.';
comment on column pawl.batch.fed is 'Items up to this number have a job.';
comment on column pawl.batch.boundary_at is 'The destructive step is committed. Before it an end restores the items; after it nothing is reverted.';
comment on column pawl.batch.ending_until is 'A cancel or a replacement waits for its lock: until then no guard gets it.';
comment on column pawl.batch.closed_at is 'Its jobs are cleared, its items restored if need be, and onEnd has run.';

-- Each row is updated once, by its settle: half a page leaves the new rows room beside the old ones. At 80, three of four settles went to another page and
-- into both indexes, which cost 40 % more.
create table pawl.batch_item (
  batch_id bigint not null,
  job_id bigint not null default pawl.next_job_id(),
  units double precision not null default 0,
  ended_at timestamptz,
  late_at timestamptz,
  restored_at timestamptz,
  n integer not null,
  tenant text collate "C" not null default '',
  key text collate "C" not null,
  outcome text collate "C",
  data jsonb,
  before jsonb,
  sums jsonb,
  error text,
  primary key (tenant, batch_id, n),
  unique (tenant, key, batch_id),
  constraint outcome_known check (outcome in ('done', 'failed')),
  constraint outcome_has_time check ((outcome is null) = (ended_at is null))
) with (fillfactor = 50);
comment on table pawl.batch_item is 'Items of batches, kept with their batch. No column that a settle changes is in an index.';
comment on column pawl.batch_item.late_at is 'Its result came after its batch had ended, and was refused.';

-- Apart from pawl.batch: above READ COMMITTED, guards lock the row of their batch, and a change of it would fail their transactions.
create table pawl.batch_cursor (
  batch_id bigint not null,
  upto integer not null,
  tenant text collate "C" not null default '',
  primary key (tenant, batch_id)
) with (fillfactor = 50);
comment on table pawl.batch_cursor is 'Items up to this number have ended, and later ones may have. A search for one that has not begins here.';

create view pawl.batch_view as
select b.tenant, b.id, b.name, b.track, b.queue, b.policy, b.state, b.revision, b.total, b.units, b.allowance_ms, b.deadline, b.started_at, b.ended_at,
  b.closed_at, b.created_at, b.prepared, b.boundary_sums, b.meta, b.by, b.rerun_of, b.end_reason, b.job_id, b.fence, b.boundary_at, b.fed,
  case
    when b.state = 'running' and b.boundary_at is not null then 'items'
    when b.state = 'running' and b.step = 'prepare' then 'prepare'
    when b.state = 'running' then 'boundary'
    when b.state <> 'queued' and b.closed_at is null then 'end'
  end as phase
from pawl.batch b;

-- Advisory locks are hashes of names, never raw ids: those may be an application's own lock numbers.
create function pawl.track_lock(p_tenant text, p_track text) returns bigint
language sql immutable parallel safe
return hashtextextended('pawl.track/' || p_tenant || '/' || p_track, 0);

create function pawl.batch_lock(p_tenant text, p_id bigint) returns bigint
language sql immutable parallel safe
return hashtextextended('pawl.batch/' || p_tenant || '/' || p_id, 0);

-- Seed 004's last-ditch timeout: time per item, and time per unit of work with a safety factor.
create function pawl.batch_allowance(p_total bigint, p_units double precision, p_allowance jsonb) returns bigint
language sql immutable parallel safe
return least((p_allowance ->> 'maxMs')::double precision, greatest((p_allowance ->> 'minMs')::double precision,
  ceil(p_total * (p_allowance ->> 'perItemMs')::double precision
    + p_units * (p_allowance ->> 'perUnitMs')::double precision * (p_allowance ->> 'safety')::double precision)))::bigint;

-- Enqueues the job of the next step: before the items of the batch and behind no backlog.
create function pawl.step_batch(p_tenant text, p_id bigint, p_kind text, p_payload jsonb default '{}') returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update pawl.batch b
  set step = p_kind,
    job_id = (
    select j.id
    from pawl.enqueue_many(b.tenant, b.queue, 'pawl.batch.' || b.name || '.' || p_kind,
      jsonb_build_array(p_payload || jsonb_build_object('batch', b.id::text, 'fence', b.fence::text)), p_priority => 100) j(id)
  )
  where b.tenant = p_tenant
    and b.id = p_id
$$;

create function pawl.batch_event(p_tenant text, p_id bigint, p_type text, p_more jsonb default '{}') returns void
language sql set search_path = pg_catalog, pg_temp as $$
  select pawl.append_event(b.tenant, 'batches', 'batch', b.id::text, p_type,
    jsonb_build_object('name', b.name, 'track', b.track, 'total', b.total, 'reason', b.end_reason, 'by', b.by) || p_more)
  from pawl.batch b
  where b.tenant = p_tenant
    and b.id = p_id
$$;

-- The number of the first item that has not ended. Null: all have.
create function pawl.first_waiting_item(p_tenant text, p_id bigint) returns integer
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select i.n
  from pawl.batch_item i
  where i.tenant = p_tenant
    and i.batch_id = p_id
    and i.n > coalesce((select c.upto from pawl.batch_cursor c where c.tenant = p_tenant and c.batch_id = p_id), 0)
    and i.outcome is null
  order by i.n
  limit 1
$$;

-- Ends one batch, under its exclusive lock. The caller has the track's lock. Returns whether it did, and the state afterwards: 'running' if it was
-- asked to finish, or to time out, and need not; 'busy' if a transaction held the lock for 250 ms. All items have ended: 'finished', whatever was asked for.
-- Whatever the number of items, it writes one row, one event and one job, and reads two items: the last one, which mostly ends last, and the first
-- after the cursor. Items that ended after that, since the cursor was moved, are read too.
create function pawl.end_locked_batch(p_tenant text, p_id bigint, p_state text, p_reason text default null, out state text, out is_ended boolean)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '250ms' set enable_seqscan = off as $$
declare
  v_was text;
  v_total integer;
  v_deadline timestamptz;
  v_job bigint;
  v_state text := p_state;
begin
  is_ended := false;
  begin
    perform pg_advisory_xact_lock(pawl.batch_lock(p_tenant, p_id));
    -- A new snapshot, taken after the lock: it has every item that settled before.
    select b.state, b.total, b.deadline, b.job_id into v_was, v_total, v_deadline, v_job
    from pawl.batch b
    where b.tenant = p_tenant and b.id = p_id
    for no key update;
  exception when lock_not_available then
    state := 'busy';
    return;
  end;
  state := v_was;
  if v_was is null or not (v_was = 'running' or v_was = 'queued' and p_state = 'cancelled') then
    return;
  end if;
  if v_was = 'running'
    and not exists (select from pawl.batch_item i where i.tenant = p_tenant and i.batch_id = p_id and i.n = v_total and i.outcome is null)
    and pawl.first_waiting_item(p_tenant, p_id) is null
  then
    v_state := 'finished';
  elsif p_state = 'finished' or p_state = 'timed-out' and v_deadline > pawl.now() then
    return;
  end if;
  update pawl.batch b
  set state = v_state,
    revision = b.revision + 1,
    ended_at = pawl.now(),
    end_reason = left(case when v_state = p_state then p_reason end, 2000)
  where b.tenant = p_tenant
    and b.id = p_id
    and b.state = v_was;
  perform pawl.batch_event(p_tenant, p_id, 'batch.' || v_state);
  -- A prepare in progress gets its signal before the items are restored. One whose job is being settled is left to the end's job.
  if v_state <> 'finished' then
    perform from pawl.cancel_jobs(p_tenant, array[v_job], 'its batch has ended', p_wait => false);
  end if;
  perform pawl.step_batch(p_tenant, p_id, 'end', jsonb_build_object('part', case when v_state = 'finished' then 'hook' else 'clear' end, 'after', 0,
    'step', v_job::text));
  state := v_state;
  is_ended := true;
end
$$;

-- Makes the next batch of a track run, unless one runs and is not overdue: p_next if it is queued, else the oldest. The caller has the track's lock.
-- The deadline is set here, so time in the queue costs no allowance.
create function pawl.run_next_batch(p_tenant text, p_track text, p_next bigint default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_id bigint;
  v_total integer;
  v_step text;
  v_is_overdue boolean;
begin
  loop
    select b.id, b.deadline <= pawl.now() into v_id, v_is_overdue
    from pawl.batch b
    where b.tenant = p_tenant and b.track = p_track and b.state = 'running';
    if v_id is not null
      and (not v_is_overdue or (pawl.end_locked_batch(p_tenant, v_id, 'timed-out', 'its deadline has passed')).state in ('busy', 'running'))
    then
      return;
    end if;
    update pawl.batch b
    set state = 'running',
      revision = b.revision + 1,
      fence = pawl.next_fence(),
      started_at = c.now,
      deadline = c.now + b.allowance_ms * interval '1 millisecond'
    from (select pawl.now() as now) c
    where b.tenant = p_tenant
      and b.state = 'queued'
      and b.id = (
        select q.id
        from pawl.batch q
        where q.tenant = p_tenant and q.track = p_track and q.state = 'queued'
        order by q.id = p_next desc nulls last, q.id
        limit 1
      )
    returning b.id, b.total, b.step into v_id, v_total, v_step;
    if not found then
      return;
    end if;
    perform pawl.batch_event(p_tenant, v_id, 'batch.started');
    if v_total > 0 then
      perform pawl.step_batch(p_tenant, v_id, v_step);
      perform pawl.enqueue_many(b.tenant, b.queue, 'pawl.batch.watch', jsonb_build_array(jsonb_build_object('batch', b.id::text, 'fence', b.fence::text)),
        p_delay_ms => least(15000, b.allowance_ms), p_priority => 100)
      from pawl.batch b
      where b.tenant = p_tenant and b.id = v_id;
      return;
    end if;
    perform pawl.end_locked_batch(p_tenant, v_id, 'finished');
  end loop;
end
$$;

-- Ends a batch and starts the next of its track, in this order of locks: track, batch. Returns what end_locked_batch does; null: there is no such batch.
create function pawl.end_batch(p_tenant text, p_id bigint, p_state text, p_reason text default null, p_next bigint default null,
  out state text, out is_ended boolean)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '250ms' as $$
declare
  v_track text;
begin
  is_ended := false;
  select b.track into v_track from pawl.batch b where b.tenant = p_tenant and b.id = p_id;
  if not found then
    return;
  end if;
  begin
    perform pg_advisory_xact_lock(pawl.track_lock(p_tenant, v_track));
  exception when lock_not_available then
    state := 'busy';
    return;
  end;
  select e.state, e.is_ended into state, is_ended from pawl.end_locked_batch(p_tenant, p_id, p_state, p_reason) e;
  if state not in ('busy', 'running') then
    perform pawl.run_next_batch(p_tenant, v_track, p_next);
  end if;
end
$$;

-- The sessions that hold the lock of a batch or of its track, such as 'pid 4711 (web)'. Null: none now.
create function pawl.batch_holders(p_tenant text, p_id bigint) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select string_agg('pid ' || a.pid || coalesce(' (' || nullif(a.application_name, '') || ')', ''), ', ' order by a.pid)
  from pg_stat_activity a
  where a.datname = current_database()
    and a.pid in (
      select l.pid
      from pg_locks l
      where l.locktype = 'advisory'
        and l.granted
        and l.objsubid = 1
        and (l.classid::bigint << 32 | l.objid::bigint) in (
          select pawl.batch_lock(p_tenant, p_id)
          union all
          select pawl.track_lock(b.tenant, b.track) from pawl.batch b where b.tenant = p_tenant and b.id = p_id
        )
    )
$$;

-- A caller's transaction that keeps a batch from ending may idle for 30 s.
create function pawl.limit_idling() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if (select s.setting::integer not between 1 and 30000 from pg_settings s where s.name = 'idle_in_transaction_session_timeout') then
    perform set_config('idle_in_transaction_session_timeout', '30000', true);
  end if;
end
$$;

-- The last statement of a start: the batch and its items are there, queued. Refused, it is removed again. In a caller's transaction (p_is_own false) a
-- refusal undoes all that it did, so that no lock is kept; one that is not refused may idle for 30 s, because no batch of the track ends before.
create function pawl.start_batch(p_tenant text, p_id bigint, p_is_own boolean, out verdict text, out blocker bigint)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  v_track text;
  v_policy text;
begin
  select b.track, b.policy into strict v_track, v_policy from pawl.batch b where b.tenant = p_tenant and b.id = p_id;
  begin
    perform pg_advisory_xact_lock(pawl.track_lock(p_tenant, v_track));
    perform pawl.run_next_batch(p_tenant, v_track, case when v_policy = 'replace' then p_id end);
    select b.id into blocker from pawl.batch b where b.tenant = p_tenant and b.track = v_track and b.state = 'running' and b.id <> p_id;
    if v_policy = 'replace' and blocker is not null
      and (pawl.end_batch(p_tenant, blocker, 'replaced', format('replaced by batch %s', p_id), p_id)).state <> 'busy'
    then
      blocker := null;
    end if;
    verdict := case when exists (select from pawl.batch b where b.tenant = p_tenant and b.id = p_id and b.state = 'queued') then v_policy else 'started' end;
    if verdict = 'refuse' and (select b.deadline <= pawl.now() from pawl.batch b where b.tenant = p_tenant and b.id = blocker) then
      verdict := 'busy';
    end if;
    if verdict = 'queue' and (select count(*) from pawl.batch b where b.tenant = p_tenant and b.track = v_track and b.state = 'queued') > 1000 then
      verdict := 'full';
    end if;
    if verdict not in ('started', 'queue') and not p_is_own then
      raise exception using errcode = 'PW0RF', message = 'refused';
    end if;
  exception
    when sqlstate 'PW0RF' then
      null;
    -- A start in an open transaction has the track; or, above READ COMMITTED, a batch runs that this snapshot does not show.
    when lock_not_available or unique_violation then
      verdict := 'busy';
  end;
  if verdict not in ('started', 'queue') then
    delete from pawl.batch_item i where i.tenant = p_tenant and i.batch_id = p_id;
    delete from pawl.batch b where b.tenant = p_tenant and b.id = p_id;
  elsif not p_is_own then
    perform pawl.limit_idling();
  end if;
end
$$;

-- Holds a batch for a transaction: until it ends, the batch cannot. Tried, not waited for: a try fails after a waiting end too, so ends do not starve.
-- Above READ COMMITTED the row is locked as well, so that a batch which ended since the snapshot is a serialization failure.
create function pawl.guard_batch(p_tenant text, p_id bigint, p_fence bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if not pg_try_advisory_xact_lock_shared(pawl.batch_lock(p_tenant, p_id)) then
    raise exception using errcode = '55P03', message = format('a transaction that may end batch %s has its lock', p_id), detail = 'pawl: busy';
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    perform from pawl.batch b where b.tenant = p_tenant and b.id = p_id and b.state = 'running' and b.fence = p_fence;
  else
    perform from pawl.batch b where b.tenant = p_tenant and b.id = p_id and b.state = 'running' and b.fence = p_fence for share;
  end if;
  if not found then
    raise exception using errcode = 'PW001', message = format('batch %s has ended', p_id), detail = 'pawl: ended',
      hint = 'Do not retry this write: items of an ended batch change nothing.';
  end if;
end
$$;

-- Moves the deadline of a running batch. Null: it does not run. A boundary in progress has its row, so it waits 1 s and then raises 55P03.
create function pawl.extend_batch(p_tenant text, p_id bigint, p_ms bigint) returns timestamptz
language sql set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
  update pawl.batch b
  set deadline = greatest(b.deadline, pawl.now()) + p_ms * interval '1 millisecond',
    allowance_ms = b.allowance_ms + p_ms,
    revision = b.revision + 1
  where b.tenant = p_tenant
    and b.id = p_id
    and b.state = 'running'
  returning b.deadline
$$;

-- Tells guards that an end waits, for 10 s. Committed by itself: one that waits in the end's own transaction would not be seen.
create function pawl.mark_ending(p_tenant text, p_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '250ms' as $$
begin
  update pawl.batch b
  set ending_until = pawl.now() + interval '10 seconds'
  where b.tenant = p_tenant
    and b.id = p_id
    and b.state = 'running';
exception when lock_not_available then
  null;
end
$$;

-- Holds an item for a caller's transaction. One that idles would keep its batch from ending, so it may idle for 30 s.
-- Guards that overlap would starve an end, which waits 250 ms at a time: after the deadline, and once an end is marked, there are no new ones.
create function pawl.guard_item(p_tenant text, p_id bigint, p_fence bigint, p_batch bigint, p_batch_fence bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (
    select
    from pawl.batch b
    where b.tenant = p_tenant
      and b.id = p_batch
      and b.state = 'running'
      and (b.deadline <= pawl.now() or b.ending_until > pawl.now())
  ) then
    raise exception using errcode = '55P03', message = format('batch %s is about to end', p_batch), detail = 'pawl: busy';
  end if;
  perform pawl.guard_batch(p_tenant, p_batch, p_batch_fence);
  perform pawl.guard_job(p_tenant, p_id, p_fence);
  perform pawl.limit_idling();
end
$$;

-- Settles one item as done with the transaction of its effects.
create function pawl.complete_item(p_tenant text, p_id bigint, p_fence bigint, p_result jsonb, p_ran_ms integer, p_progress jsonb, p_batch bigint,
  p_n integer, p_batch_fence bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  perform pawl.guard_batch(p_tenant, p_batch, p_batch_fence);
  perform pawl.complete_job(p_tenant, p_id, p_fence, p_result, p_ran_ms, p_progress);
  update pawl.batch_item i
  set outcome = 'done',
    ended_at = pawl.now(),
    sums = p_result
  where i.tenant = p_tenant
    and i.batch_id = p_batch
    and i.n = p_n
    and i.outcome is null;
  if not found then
    perform pawl.raise_lease_lost('the job of an item that has ended,', p_id, p_fence);
  end if;
end
$$;

-- Settles items with their jobs. First the shared lock of each batch, tried; then, in a new statement, what the batches say: one statement
-- would read their states in a snapshot that is older than the locks. An item of a batch that has ended is late, and its job cancelled. A batch
-- that is being ended, and the 65th, are left: their jobs stay held. Rows: the settled items, and those that the same failure ended before.
create function pawl.settle_items(p_tenants text[], p_ids bigint[], p_fences bigint[], p_results jsonb[], p_progress jsonb[], p_ran_ms integer[],
  p_batches bigint[], p_numbers integer[], p_batch_fences bigint[], p_outcomes text[] default '{}', p_errors text[] default '{}')
returns table (tenant text, id bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_locked bigint[];
  v_open bigint[];
  v_open_fences bigint[];
begin
  v_locked := array(
    select g.batch
    from (
      select distinct coalesce(u.tenant, '') as tenant, u.batch
      from unnest(p_tenants, p_batches) u(tenant, batch)
      order by 2
      limit 64
    ) g
    where pg_try_advisory_xact_lock_shared(pawl.batch_lock(g.tenant, g.batch))
  );
  select array_agg(b.id), array_agg(b.fence) into v_open, v_open_fences
  from (select distinct coalesce(u.tenant, '') as tenant, u.batch from unnest(p_tenants, p_batches) u(tenant, batch)) g
  join pawl.batch b on b.tenant = g.tenant and b.id = g.batch
  where g.batch = any (v_locked)
    and b.state = 'running';
  -- Mostly all of them are: then the arrays are settled as they came.
  if exists (
    select
    from unnest(p_batches, p_batch_fences) g(batch, fence)
    where (g.batch, g.fence) not in (select o.id, o.fence from unnest(v_open, v_open_fences) o(id, fence))
  ) then
    with given as materialized (
      select coalesce(g.tenant, '') as tenant, g.id, g.fence, g.result, g.progress, g.ran_ms, g.batch, g.n, g.outcome, g.error,
        (g.batch, g.batch_fence) in (select o.id, o.fence from unnest(v_open, v_open_fences) o(id, fence)) as is_open
      from unnest(p_tenants, p_ids, p_fences, p_results, p_progress, p_ran_ms, p_batches, p_numbers, p_batch_fences, p_outcomes, p_errors)
        as g(tenant, id, fence, result, progress, ran_ms, batch, n, batch_fence, outcome, error)
      where g.batch = any (v_locked)
    ),
    late as (
      update pawl.batch_item i
      set late_at = coalesce(i.late_at, (select pawl.now()))
      from given g
      where not g.is_open
        and i.tenant = any (array[g.tenant])
        and i.batch_id = g.batch
        and i.n = g.n
        and i.outcome is null
    ),
    cancelled as materialized (
      select c.id
      from (select g.tenant, array_agg(g.id order by g.id) as ids from given g where not g.is_open group by g.tenant) o
      cross join lateral pawl.cancel_jobs(o.tenant, o.ids, 'its batch has ended', p_wait => false) c(id)
    )
    select array_agg(g.tenant), array_agg(g.id), array_agg(g.fence), array_agg(g.result), array_agg(g.progress), array_agg(g.ran_ms), array_agg(g.batch),
      array_agg(g.n), array_agg(g.outcome), array_agg(g.error)
    into p_tenants, p_ids, p_fences, p_results, p_progress, p_ran_ms, p_batches, p_numbers, p_outcomes, p_errors
    from given g
    where g.is_open
      and (select count(*) from cancelled) >= 0;
  end if;
  return query
    with settled as materialized (
      select s.tenant, s.id, s.fence
      from pawl.settle_jobs(p_tenants, p_ids, p_fences, p_results, p_progress, p_ran_ms, p_outcomes, p_errors) s
    ),
    -- A hashed subplan: engine connections have no hash joins, and a nested loop over 1,000 items and as many jobs took 290 ms.
    given as materialized (
      select coalesce(g.tenant, '') as tenant, g.id, g.batch, g.n, g.result, g.outcome, g.error,
        (coalesce(g.tenant, ''), g.id, g.fence) in (select s.tenant, s.id, s.fence from settled s) as is_settled
      from unnest(p_tenants, p_ids, p_fences, p_results, p_batches, p_numbers, p_outcomes, p_errors)
        as g(tenant, id, fence, result, batch, n, outcome, error)
    ),
    ended as (
      update pawl.batch_item i
      set outcome = case when g.outcome is null then 'done' else 'failed' end,
        ended_at = (select pawl.now()),
        sums = g.result,
        error = g.error
      from given g
      where g.is_settled
        and i.tenant = any (array[g.tenant])
        and i.batch_id = g.batch
        and i.n = g.n
        and i.outcome is null
    )
    select s.tenant, s.id
    from settled s
    union all
    select g.tenant, g.id
    from given g
    join pawl.batch_item i on i.tenant = any (array[g.tenant]) and i.batch_id = g.batch and i.n = g.n
    where g.outcome is not null
      and i.outcome = 'failed';
end
$$;

-- Fails items whose job is dead or gone: a sweep declared it dead, or SQL cancelled it. It reads dead jobs by their index, and of
-- other items the first 5,000 that wait. Returns how many; null: the batch is being ended.
create function pawl.fail_lost_items(p_tenant text, p_id bigint, p_fence bigint) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_name text;
  v_fed integer;
  v_first integer := pawl.first_waiting_item(p_tenant, p_id);
  v_failed integer;
begin
  if not pg_try_advisory_xact_lock_shared(pawl.batch_lock(p_tenant, p_id)) then
    return null;
  end if;
  select b.name, b.fed into v_name, v_fed from pawl.batch b where b.tenant = p_tenant and b.id = p_id and b.state = 'running' and b.fence = p_fence;
  if not found then
    return 0;
  end if;
  with dead as materialized (
    select (j.payload ->> 'n')::integer as n, j.id, j.last_error
    from pawl.job j
    where j.state = 'dead'
      and j.tenant = p_tenant
      and j.kind = 'pawl.batch.' || v_name || '.item'
      and j.payload ->> 'batch' = p_id::text
    order by j.id
    limit 10000
  ),
  gone as materialized (
    select w.n
    from (
      select i.n, i.job_id
      from pawl.batch_item i
      where i.tenant = p_tenant and i.batch_id = p_id and i.n >= v_first and i.n <= v_fed and i.outcome is null
      order by i.n
      limit 5000
    ) w
    where (select true from pawl.job j where j.tenant = p_tenant and j.id = w.job_id) is null
  ),
  lost as (
    select d.n, d.last_error as error from dead d
    union all
    select g.n, 'its job was cancelled' from gone g
  ),
  failed as (
    update pawl.batch_item i
    set outcome = 'failed',
      ended_at = pawl.now(),
      error = left(l.error, 4000)
    from lost l
    where i.tenant = p_tenant
      and i.batch_id = p_id
      and i.n = l.n
      and i.outcome is null
    returning i.n
  )
  select count(f.n), (select count(*) from pawl.cancel_jobs(p_tenant, array(select d.id from dead d), 'its item has failed', p_wait => false))
  into v_failed
  from failed f;
  return v_failed;
end
$$;

-- Gives the next items their jobs: 2,000 at first, so that they begin early, then 10,000; fewer if their data takes more than 16 MB. False: the batch does
-- not run any more. Null: it runs, and its deadline has passed or it has not crossed its boundary; an extend may still let it go on.
create function pawl.feed_batch(p_tenant text, p_id bigint, p_fence bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_name text;
  v_queue text;
  v_fed integer;
  v_upto integer;
  v_total integer;
  v_ids bigint[];
  v_payloads jsonb[];
  v_may_feed boolean;
begin
  select b.name, b.queue, b.fed, b.total, b.boundary_at is not null and b.deadline > pawl.now() into v_name, v_queue, v_fed, v_total, v_may_feed
  from pawl.batch b
  where b.tenant = p_tenant and b.id = p_id and b.fence = p_fence and b.state = 'running'
  for no key update;
  if not found then
    return false;
  end if;
  if not v_may_feed then
    return null;
  end if;
  select max(x.n), array_agg(x.job_id order by x.n),
    array_agg(jsonb_build_object('batch', p_id::text, 'n', x.n, 'fence', p_fence::text, 'key', x.key, 'data', x.data) order by x.n)
  into v_upto, v_ids, v_payloads
  from (
    select i.n, i.job_id, i.key, i.data,
      -- What is compressed has its size only as a string.
      sum(case when pg_column_compression(i.data) is null then pg_column_size(i.data) else octet_length(i.data::text) end)
        over (order by i.n rows unbounded preceding) as bytes
    from pawl.batch_item i
    where i.tenant = p_tenant and i.batch_id = p_id and i.n > v_fed
    order by i.n
    limit case when v_fed = 0 then 2000 else 10000 end
  ) x
  where coalesce(x.bytes, 0) <= 16777216 or x.n = v_fed + 1;
  perform pawl.enqueue_given(p_tenant, v_queue, 'pawl.batch.' || v_name || '.item', v_ids, v_payloads);
  update pawl.batch b set fed = v_upto where b.tenant = p_tenant and b.id = p_id;
  if v_upto < v_total then
    perform pawl.step_batch(p_tenant, p_id, 'step');
  end if;
  return true;
end
$$;
