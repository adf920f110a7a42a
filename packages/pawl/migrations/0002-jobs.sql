-- Jobs: a narrow table of live jobs, the history of finished ones, and recorded attempts.

create sequence pawl.job_serial as bigint cache 1;

-- Milliseconds of database time, then 21 bits of a sequence: ids sort by time, so the day of a job follows from its id.
create function pawl.next_job_id() returns bigint
language sql volatile
return ((date_part('epoch', pawl.now()) * 1000)::bigint << 21) | (nextval('pawl.job_serial') & 2097151);

create table pawl.job (
  id bigint not null default pawl.next_job_id(),
  fence bigint not null default pawl.assert_no_fold(),
  due timestamptz not null,
  run_at timestamptz not null,
  run_until timestamptz,
  created_at timestamptz not null default pawl.now(),
  claimed_at timestamptz,
  progress_at timestamptz,
  holder integer,
  revision integer not null default 1,
  attempt integer not null default 0,
  given_attempts integer,
  max_attempts integer,
  crashes integer not null default 0,
  excused integer not null default 0,
  snoozes integer not null default 0,
  max_crashes smallint,
  postponed smallint not null default 0,
  priority smallint not null default 0,
  payload_version smallint not null default 1,
  suspect boolean not null default false,
  tenant text collate "C" not null default '',
  queue text collate "C" not null,
  kind text collate "C" not null,
  state text collate "C" not null,
  payload jsonb not null,
  headers jsonb,
  progress jsonb,
  last_error text,
  primary key (tenant, id),
  constraint state_known check (state in ('scheduled', 'ready', 'running', 'dead')),
  constraint running_is_held check ((state = 'running') = (holder is not null) and (holder is null) = (run_until is null)),
  constraint suspect_is_not_dead check (not suspect or state <> 'dead')
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table pawl.job is
  'Live jobs. Done and cancelled ones are deleted and written to pawl.job_history in the same statement; dead ones stay until '
  'they are retried or cancelled.';
comment on column pawl.job.due is 'The one sort key of the claim: run_at less a minute per point of priority, so waiting ages a job.';
comment on column pawl.job.suspect is
  'Its process died while it may have run, and it has not ended in order since: it is never buffered, and the run that would reach '
  'max_crashes has no other job beside it.';
comment on column pawl.job.given_attempts is 'The attempts that its enqueue named. They win over those of its kind.';
comment on column pawl.job.max_attempts is 'Written by the claim: given_attempts, or those of the kind''s definition. max_crashes likewise.';
comment on column pawl.job.postponed is 'How often in a row a process could not empty itself to run it alone.';
comment on column pawl.job.excused is
  'Crashes before its last orderly end, which showed that it does not kill its process: only the later ones count to its limit.';
comment on column pawl.job.snoozes is 'How often it was put off without an attempt; last_error says why, where there was a reason.';
comment on column pawl.job.holder is 'The incarnation (pawl.worker.id) that holds it; the lease ends when that row says so.';

create index job_ready on pawl.job (queue, due, id) where state = 'ready' and not suspect;
create index job_suspect on pawl.job (queue, due, id) where suspect;
create index job_scheduled on pawl.job (run_at, id) where state = 'scheduled';
create index job_held on pawl.job (holder, run_until) where state = 'running';
create index job_dead on pawl.job (tenant, kind, id) where state = 'dead';

create table pawl.job_history (
  id bigint not null,
  fence bigint not null,
  created_at timestamptz not null,
  finished_at timestamptz not null,
  ran_ms integer,
  holder integer,
  attempt integer not null,
  crashes integer not null,
  priority smallint not null,
  payload_version smallint not null,
  tenant text collate "C" not null,
  queue text collate "C" not null,
  kind text collate "C" not null,
  outcome text collate "C" not null,
  payload jsonb not null,
  headers jsonb,
  result jsonb,
  progress jsonb,
  reason text,
  constraint outcome_known check (outcome in ('done', 'cancelled'))
) partition by range (finished_at);
create index job_history_id on pawl.job_history (id);
comment on table pawl.job_history is 'Finished jobs, by the day they finished. A lookup by id starts at the day that the id carries.';

create table pawl.job_attempt (
  job_id bigint not null,
  fence bigint not null,
  ended_at timestamptz not null,
  ran_ms integer,
  holder integer,
  attempt integer not null,
  tenant text collate "C" not null,
  kind text collate "C" not null,
  outcome text collate "C" not null,
  error text,
  constraint outcome_known check (outcome in ('failed', 'timed out', 'crashed', 'interrupted', 'invalid'))
) partition by range (ended_at);
create index job_attempt_job on pawl.job_attempt (job_id);
comment on table pawl.job_attempt is 'Attempts that did not finish their job. The one that did is the history row itself.';

select pawl.add_day_partitions('job_history', (pawl.now() at time zone 'UTC')::date, 7);
select pawl.add_day_partitions('job_attempt', (pawl.now() at time zone 'UTC')::date, 7);

-- Wakes sleepers of a queue. The caller inserted first, so its transaction has an id that a worker going to sleep waits for. Above
-- READ COMMITTED the flag could be as old as the caller's snapshot, so such callers always notify.
create function pawl.wake(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('transaction_isolation') <> 'read committed'
    or exists (select from pawl.sleeper s where s.tenant = '' and s.queue = p_queue)
  then
    perform pg_notify('pawl_wake', p_queue);
  end if;
end
$$;

create function pawl.enqueue_many(
  p_tenant text,
  p_queue text,
  p_kind text,
  p_payloads jsonb,
  p_payload_version integer default 1,
  p_run_at timestamptz default null,
  p_delay_ms bigint default null,
  p_priority integer default 0,
  p_max_attempts integer default null,
  p_headers jsonb default null,
  p_wake boolean default true
) returns setof bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := pawl.now();
  -- What is refused below is not added to first: the sum may be no time at all.
  v_run_at timestamptz := case
    when p_run_at not between 'epoch' and v_now + interval '10 years' then p_run_at
    when p_delay_ms not between -315576000000 and 315576000000 then 'infinity'
    else coalesce(p_run_at, v_now) + coalesce(p_delay_ms, 0) * interval '1 millisecond'
  end;
  v_state text := case when v_run_at > v_now then 'scheduled' else 'ready' end;
  -- As pawl.next_job_id(), with the clock read once for all rows of the call.
  v_id_time bigint := (date_part('epoch', v_now) * 1000)::bigint << 21;
  -- As the default, once for all rows of the call.
  v_fence bigint := pawl.assert_no_fold();
begin
  -- Checked here and not by constraints of the table, which every claim would pay for again.
  if length(p_tenant) > 100 or length(p_queue) not between 1 and 100 or length(p_kind) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'tenant, queue or kind is empty or too long',
      hint = 'tenant: up to 100 characters, queue: 1 to 100, kind: 1 to 200';
  end if;
  if p_max_attempts not between 1 and 1000000 then
    raise exception using errcode = '22023', message = format('max_attempts must be an integer from 1 to 1000000, got %s', p_max_attempts);
  end if;
  if p_priority is null or p_priority not between -100 and 100 then
    raise exception using errcode = '22023', message = format('priority must be an integer from -100 to 100, got %s', coalesce(p_priority::text, 'null'));
  end if;
  if p_delay_ms < 0 then
    raise exception using errcode = '22023', message = format('delay must not be negative, got %s ms', p_delay_ms);
  end if;
  if v_run_at < 'epoch' and isfinite(v_run_at) then
    raise exception using errcode = '22023', message = format('run_at must not be before 1970, got %s', v_run_at),
      hint = 'Leave it out for a job that is due at once.';
  end if;
  if not isfinite(v_run_at) or v_run_at > v_now + interval '10 years' then
    raise exception using errcode = '22023', message = format('run_at must be within the next 10 years, got %s', v_run_at),
      hint = 'For a job that runs when something else happens, enqueue it when that happens.';
  end if;
  if pg_column_size(p_payloads) > 16777216 and exists (select from jsonb_array_elements(p_payloads) e where pg_column_size(e.value) > 16777216) then
    raise exception using errcode = '22023', message = 'a payload is larger than 16 MB', hint = 'Store it elsewhere and pass a reference.';
  end if;
  if pg_column_size(p_headers) > 16777216 then
    raise exception using errcode = '22023', message = 'headers are larger than 16 MB', hint = 'Store them elsewhere and pass a reference.';
  end if;
  return query
    insert into pawl.job (id, fence, tenant, queue, kind, state, payload, payload_version, due, run_at, created_at, priority, given_attempts,
      max_attempts, headers)
    select v_id_time | (nextval('pawl.job_serial') & 2097151), v_fence, p_tenant, p_queue, p_kind, v_state, e.value, p_payload_version,
      v_run_at - p_priority * interval '1 minute', v_run_at, v_now, p_priority, p_max_attempts, p_max_attempts, p_headers
    from jsonb_array_elements(p_payloads) e
    returning pawl.job.id;
  if p_wake and v_run_at <= v_now then
    perform pawl.wake(p_queue);
  end if;
end
$$;

-- Enqueues jobs of a capability that are due now, under ids that it drew before with pawl.next_job_id(). Elements of one jsonb array in place of
-- p_payloads took 1.8 times as long.
create function pawl.enqueue_given(p_tenant text, p_queue text, p_kind text, p_ids bigint[], p_payloads jsonb[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := pawl.now();
  v_fence bigint := pawl.assert_no_fold();
begin
  insert into pawl.job (id, fence, tenant, queue, kind, state, payload, due, run_at, created_at)
  select g.id, v_fence, p_tenant, p_queue, p_kind, 'ready', g.payload, v_now, v_now, v_now
  from unnest(p_ids, p_payloads) g(id, payload);
  perform pawl.wake(p_queue);
end
$$;

-- Enqueue from plain SQL, a trigger, or any language: select pawl.enqueue('email', '{"to": "a@b.c"}');
create function pawl.enqueue(
  kind text,
  payload jsonb default '{}',
  queue text default 'default',
  run_at timestamptz default null,
  delay interval default null,
  priority integer default 0,
  max_attempts integer default null,
  tenant text default '',
  headers jsonb default null,
  wake boolean default true
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if starts_with(enqueue.kind, 'pawl.') or starts_with(enqueue.queue, 'pawl.') then
    raise exception using errcode = '22023', message = 'kind and queue must not begin with ''pawl.'', which is reserved for Pawl''s own jobs';
  end if;
  return pawl.enqueue_many(enqueue.tenant, enqueue.queue, enqueue.kind, jsonb_build_array(enqueue.payload), 1, enqueue.run_at,
    (extract(epoch from enqueue.delay) * 1000)::bigint, enqueue.priority, enqueue.max_attempts, enqueue.headers, enqueue.wake);
end
$$;

-- These functions keep to the primary key, whatever the table looked like when this session first planned them.

-- Holds the job for the caller's transaction: until it ends no worker can take the job over. Raises PW001 when it is lost already.
create function pawl.guard_job(p_tenant text, p_id bigint, p_fence bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  perform from pawl.job j where j.tenant = p_tenant and j.id = p_id and j.fence = p_fence for no key update;
  if not found then
    perform pawl.raise_lease_lost('job', p_id, p_fence);
  end if;
end
$$;

-- Puts one job off inside the transaction of its handler, so that what the handler wrote commits with it. Raises PW001 when the fence is not
-- the current one. The same change as a snooze in `settle-failed`.
create function pawl.snooze_job(p_tenant text, p_id bigint, p_fence bigint, p_delay_ms bigint, p_progress jsonb default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_run_at timestamptz := pawl.now() + p_delay_ms * interval '1 millisecond';
begin
  update pawl.job j
  set state = 'scheduled',
    run_at = v_run_at,
    due = v_run_at - j.priority * interval '1 minute',
    attempt = j.attempt - 1,
    snoozes = least(j.snoozes, 2147483646) + 1,
    postponed = 0,
    progress = coalesce(p_progress, j.progress),
    fence = pawl.next_fence(),
    revision = case when j.revision < 2000000000 then j.revision + 1 else 1 end,
    holder = null,
    run_until = null,
    claimed_at = null
  where j.tenant = p_tenant
    and j.id = p_id
    and j.fence = p_fence;
  if not found then
    perform pawl.raise_lease_lost('job', p_id, p_fence);
  end if;
end
$$;

-- Settles one job as done inside the caller's transaction. Raises PW001 when the fence is not the current one. Every operator has its schema,
-- which costs nothing at a call, unlike a search path. A plan that was made while the table was empty must not scan the full one: no seqscan.
create function pawl.complete_job(p_tenant text, p_id bigint, p_fence bigint, p_result jsonb default null, p_ran_ms integer default null,
  p_progress jsonb default null) returns void
language plpgsql set enable_seqscan = off as $$
begin
  with gone as (
    delete from pawl.job j
    where j.tenant operator(pg_catalog.=) p_tenant
      and j.id operator(pg_catalog.=) p_id
      and j.fence operator(pg_catalog.=) p_fence
    returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
      j.payload, j.headers, j.progress
  )
  insert into pawl.job_history (id, fence, created_at, finished_at, ran_ms, holder, attempt, crashes, priority, payload_version, tenant,
    queue, kind, outcome, payload, headers, progress, result)
  select g.id, g.fence, g.created_at, pawl.now(), p_ran_ms, g.holder, g.attempt, g.crashes, g.priority, g.payload_version, g.tenant,
    g.queue, g.kind, 'done', g.payload, g.headers, coalesce(p_progress, g.progress), p_result
  from gone g;
  if not found then
    perform pawl.raise_lease_lost('job', p_id, p_fence);
  end if;
end
$$;

-- Settles jobs inside a transaction of a capability, which writes rows of its own with them. A null outcome means done. Any other is a last failure:
-- the attempt is recorded, and no dead job stays, because the capability's row has the error. Rows: those that were held under their fence.
create function pawl.settle_jobs(p_tenants text[], p_ids bigint[], p_fences bigint[], p_results jsonb[], p_progress jsonb[], p_ran_ms integer[],
  p_outcomes text[] default '{}', p_errors text[] default '{}') returns table (tenant text, id bigint, fence bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
begin
  return query
    with given as materialized (
      select coalesce(g.tenant, '') as tenant, g.id, g.fence, g.result, g.progress, g.ran_ms, g.outcome, g.error
      from unnest(p_tenants, p_ids, p_fences, p_results, p_progress, p_ran_ms, p_outcomes, p_errors)
        as g(tenant, id, fence, result, progress, ran_ms, outcome, error)
      order by g.tenant, g.id
    ),
    gone as (
      delete from pawl.job j
      using given g
      where j.tenant = any (array[g.tenant])
        and j.id = g.id
        and j.fence = g.fence
      returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
        j.payload, j.headers, coalesce(g.progress, j.progress) as progress, g.result, g.ran_ms, g.outcome, g.error
    ),
    recorded as (
      insert into pawl.job_attempt (job_id, fence, ended_at, ran_ms, holder, attempt, tenant, kind, outcome, error)
      select o.id, o.fence, (select pawl.now()), o.ran_ms, o.holder, o.attempt, o.tenant, o.kind, o.outcome, o.error
      from gone o
      where o.outcome is not null
    ),
    kept as (
      insert into pawl.job_history (id, fence, created_at, finished_at, ran_ms, holder, attempt, crashes, priority, payload_version, tenant,
        queue, kind, outcome, payload, headers, progress, result, reason)
      select o.id, o.fence, o.created_at, (select pawl.now()), o.ran_ms, o.holder, o.attempt, o.crashes, o.priority, o.payload_version,
        o.tenant, o.queue, o.kind, case when o.outcome is null then 'done' else 'cancelled' end, o.payload, o.headers, o.progress, o.result,
        left(o.error, 2000)
      from gone o
    )
    select o.tenant, o.id, o.fence
    from gone o;
end
$$;

-- Cancels live jobs of one tenant, for a capability that ends its own work: the same change as the statement `cancel`. With p_wait false it leaves
-- out rows that another transaction has locked. Returns the ids of the cancelled jobs.
create function pawl.cancel_jobs(p_tenant text, p_ids bigint[], p_reason text default null, p_wait boolean default true) returns setof bigint
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_ids bigint[];
begin
  if p_wait then
    v_ids := array(select j.id from pawl.job j where j.tenant = p_tenant and j.id = any (p_ids) order by j.id for update);
  else
    v_ids := array(select j.id from pawl.job j where j.tenant = p_tenant and j.id = any (p_ids) order by j.id for update skip locked);
  end if;
  return query
    with gone as (
      delete from pawl.job j
      where j.tenant = p_tenant
        and j.id = any (v_ids)
      returning j.id, j.fence, j.created_at, j.holder, j.attempt, j.crashes, j.priority, j.payload_version, j.tenant, j.queue, j.kind,
        j.payload, j.headers, j.progress
    ),
    kept as (
      insert into pawl.job_history (id, fence, created_at, finished_at, holder, attempt, crashes, priority, payload_version, tenant, queue, kind,
        outcome, payload, headers, progress, reason)
      select o.id, o.fence, o.created_at, pawl.now(), o.holder, o.attempt, o.crashes, o.priority, o.payload_version, o.tenant, o.queue, o.kind,
        'cancelled', o.payload, o.headers, o.progress, left(p_reason, 2000)
      from gone o
    ),
    told as materialized (
      select pg_notify('pawl_lost', h.holder::text)
      from (select distinct o.holder from gone o where o.holder is not null) h
    )
    select o.id
    from gone o
    where (select count(*) from told) >= 0;
end
$$;

-- Alerts that job rows show: kinds with dead jobs, jobs that could not run alone, and kinds that wait at the front of a
-- queue although no open worker takes them from there. p_tenant null: of all tenants. Counts stop at 1,000, and of each queue the first 1,000
-- jobs are read, for one tenant the first 10,000.
create function pawl.job_alerts(p_tenant text)
returns table (tenant text, code text, subject text, message text, count bigint, first_at timestamptz, last_at timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
  with recursive dead as (
    (
      select j.tenant, j.kind
      from pawl.job j
      where j.state = 'dead'
        and j.tenant >= coalesce(p_tenant, '')
      order by j.tenant, j.kind
      limit 1
    )
    union all
    select n.tenant, n.kind
    from dead d
    cross join lateral (
      select j.tenant, j.kind
      from pawl.job j
      where j.state = 'dead'
        and (j.tenant, j.kind) > (d.tenant, d.kind)
      order by j.tenant, j.kind
      limit 1
    ) n
    where p_tenant is null or d.tenant = p_tenant
  ),
  open as materialized (
    select p.queues, p.kinds
    from pawl.worker_process p
    where p.tenant = ''
      and p.id = any (array(select w.id from pawl.live_workers() w where w.closed_at is null))
  ),
  waited as (
    (select j.queue from pawl.job j where j.state = 'ready' and not j.suspect order by j.queue limit 1)
    union all
    select n.queue
    from waited b
    cross join lateral (
      select j.queue from pawl.job j where j.state = 'ready' and not j.suspect and j.queue > b.queue order by j.queue limit 1
    ) n
  ),
  suspected as (
    (select j.queue from pawl.job j where j.suspect order by j.queue limit 1)
    union all
    select n.queue
    from suspected b
    cross join lateral (select j.queue from pawl.job j where j.suspect and j.queue > b.queue order by j.queue limit 1) n
  ),
  front as materialized (
    select f.tenant, q.queue, f.kind, f.id
    from (select w.queue from waited w union select s.queue from suspected s) q
    cross join lateral (
      (
        select j.tenant, j.kind, j.id
        from pawl.job j
        where j.queue = q.queue
          and j.state = 'ready'
          and not j.suspect
        order by j.due, j.id
        limit case when p_tenant is null then 1000 else 10000 end
      )
      union all
      (
        select j.tenant, j.kind, j.id
        from pawl.job j
        where j.queue = q.queue
          and j.state = 'ready'
          and j.suspect
        order by j.due, j.id
        limit 1000
      )
    ) f
    -- What has just been added may be claimed in a moment.
    where to_timestamp((f.id >> 21) / 1000.0) < (select pawl.now()) - interval '10 seconds'
      and (p_tenant is null or f.tenant = p_tenant)
  ),
  pair as materialized (
    select f.queue, f.kind, exists (select from open o where f.kind = any (o.kinds)) as is_defined
    from (select distinct x.queue, x.kind from front x) f
    where not exists (select from open o where f.queue = any (o.queues) and f.kind = any (o.kinds))
  ),
  waiting as (
    select f.tenant, f.kind, case when p.is_defined then f.queue end as wrong_queue, f.id
    from front f
    join pair p on p.queue = f.queue and p.kind = f.kind
  )
  select d.tenant, 'job.dead', d.kind,
    format('%s job(s) of kind %s are dead; the last is %s: %s', s.count, d.kind, s.ids[1], left(coalesce(s.errors[1], 'no error was recorded'), 1000)),
    s.count, s.first_at, s.last_at
  from dead d
  cross join lateral (
    select count(*) as count, min(k.run_at) as first_at, max(k.run_at) as last_at,
      array_agg(k.id order by k.id desc) as ids, array_agg(k.last_error order by k.id desc) as errors
    from (
      select j.id, j.run_at, j.last_error
      from pawl.job j
      where j.state = 'dead'
        and j.tenant = d.tenant
        and j.kind = d.kind
      order by j.id desc
      limit 1000
    ) k
  ) s
  where p_tenant is null or d.tenant = p_tenant
  union all
  select j.tenant, 'job.postponed', j.kind,
    format('%s job(s) of kind %s must run alone, but ten times in a row no worker finished its other jobs in time; the last is %s',
      count(*), j.kind, max(j.id)),
    count(*), min(j.created_at), max(j.run_at)
  from pawl.job j
  where j.suspect
    and j.postponed >= 10
    and (p_tenant is null or j.tenant = p_tenant)
  group by j.tenant, j.kind
  union all
  select w.tenant, 'kind.unknown', case when w.wrong_queue is null then w.kind else format('%s in queue %s', w.kind, w.wrong_queue) end,
    case
      when w.wrong_queue is null then format('Jobs of kind %s are waiting (the oldest is %s), but no running worker defines it', w.kind, min(w.id))
      else format('Jobs of kind %s are waiting in queue %s (the oldest is %s), but the workers that define it work other queues', w.kind, w.wrong_queue, min(w.id))
    end,
    count(*), to_timestamp((min(w.id) >> 21) / 1000.0), to_timestamp((max(w.id) >> 21) / 1000.0)
  from waiting w
  group by w.tenant, w.kind, w.wrong_queue
$$;
