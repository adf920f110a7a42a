-- Kernel: the clock, fence numbers, workers and their leases, once keys, alerts and evidence of refused writes.

create function pawl.now() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();
comment on function pawl.now() is
  'Database time. Every lease, due time and deadline is decided by this clock; tests replace the function to move it.';

create sequence pawl.fence_serial as bigint cache 1;

-- One number per claim, for everything that is claimed: milliseconds of database time, then 21 bits of a sequence. A lagging standby or a
-- restore sets a sequence back, so a sequence alone would give a number out twice. Fences are compared for equality only.
create function pawl.next_fence() returns bigint
language sql volatile
return ((date_part('epoch', pawl.now()) * 1000)::bigint << 21) | (nextval('pawl.fence_serial') & 2097151);

create table pawl.installation (
  tenant text collate "C" not null default '',
  id uuid not null default gen_random_uuid(),
  created_at timestamptz not null default pawl.now(),
  primary key (tenant)
);
comment on table pawl.installation is 'One row. Its id makes idempotency keys unique beyond this database.';
insert into pawl.installation default values;

create sequence pawl.worker_id as integer;

-- What a beat writes again is a narrow row: while a stranger's old snapshot stays open, vacuum can remove none of its versions.
create table pawl.worker (
  seen_at timestamptz not null default pawl.now(),
  lease_until timestamptz not null,
  nonce uuid not null default gen_random_uuid(),
  id integer not null default nextval('pawl.worker_id'),
  look_ms integer not null default 500,
  locks boolean not null default false,
  tenant text collate "C" not null default '',
  asked_by uuid,
  asked_at timestamptz,
  closed_at timestamptz,
  emptied_at timestamptz,
  close_reason text,
  primary key (tenant, id),
  constraint closed_has_reason check ((closed_at is null) = (close_reason is null)),
  constraint asked_has_time check ((asked_by is null) = (asked_at is null)),
  constraint emptied_is_closed check (emptied_at is null or closed_at is not null)
) with (fillfactor = 50);
create index worker_live on pawl.worker (id) where emptied_at is null;
comment on table pawl.worker is
  'One row per incarnation of a worker process. lease_until is the end of the lease of everything that it holds, until the incarnation is '
  'closed: a closed one never opens again.';
comment on column pawl.worker.nonce is 'Drawn when it was opened. A restore can set worker_id back, so an id alone may be given out twice.';
comment on column pawl.worker.locks is 'Whether it holds the session advisory lock (pawl, id), which shows that its process lives.';
comment on column pawl.worker.look_ms is 'How often it reads its own row, and answers a question that it finds there with a beat.';
comment on column pawl.worker.asked_by is
  'A watcher that found its lease ended or its lock free asks whether it lives. Only a question that stays unanswered closes it.';
comment on column pawl.worker.emptied_at is 'When it was found to hold nothing, long after it was closed: sweeps pass over it.';

-- Shows a worker that holds something after all to the sweeps again.
create function pawl.show_worker(p_worker integer) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update pawl.worker w set emptied_at = null where w.tenant = '' and w.id = p_worker
$$;

create table pawl.worker_process (
  tenant text collate "C" not null default '',
  id integer not null,
  name text not null,
  host text not null,
  pid integer not null,
  release text not null,
  queues text[] not null,
  kinds text[] not null,
  concurrency integer not null,
  sessions text not null default '',
  started_at timestamptz not null default pawl.now(),
  primary key (tenant, id)
);
comment on table pawl.worker_process is
  'The process of each incarnation and what it works on: written once, with its row in pawl.worker, and removed with it. There is no foreign '
  'key: each beat would read its old row again for it.';

comment on column pawl.worker_process.sessions is
  'What application_name ends with in the sessions of its handlers and claims. Empty behind a pooler, where a session is not one process''s.';

-- The incarnations that are open, or closed and not yet found empty. An index scan would read a page again for each worker that has a dead
-- version there, up to 20 times with 20 workers; a bitmap scan reads each page once, whatever the statistics say.
create function pawl.live_workers()
returns table (
  id integer,
  nonce uuid,
  look_ms integer,
  locks boolean,
  seen_at timestamptz,
  lease_until timestamptz,
  asked_by uuid,
  asked_at timestamptz,
  closed_at timestamptz
)
language plpgsql stable rows 20 set search_path = pg_catalog, pg_temp set enable_indexscan = off set enable_seqscan = off as $$
begin
  return query
    select w.id, w.nonce, w.look_ms, w.locks, w.seen_at, w.lease_until, w.asked_by, w.asked_at, w.closed_at
    from pawl.worker w
    where w.emptied_at is null;
end
$$;

create table pawl.sleeper (
  tenant text collate "C" not null default '',
  queue text collate "C" not null,
  worker integer not null,
  since timestamptz not null default pawl.now(),
  primary key (tenant, queue, worker)
);
comment on table pawl.sleeper is 'Workers that wait for a notification on a queue. An enqueue notifies only while there is one.';

create table pawl.once (
  tenant text collate "C" not null default '',
  namespace text collate "C" not null,
  key text collate "C" not null,
  result jsonb,
  created_at timestamptz not null default pawl.now(),
  expires_at timestamptz,
  primary key (tenant, namespace, key),
  constraint key_length check (length(namespace) between 1 and 200 and length(key) between 1 and 500)
);
create index once_expiry on pawl.once (expires_at) where expires_at is not null;
comment on table pawl.once is 'A key written in the transaction of its effect: a caller that finds it knows that the effect happened.';

create table pawl.alert (
  tenant text collate "C" not null default '',
  id bigint generated always as identity,
  code text not null,
  subject text not null,
  message text not null,
  count bigint not null default 1,
  first_at timestamptz not null default pawl.now(),
  last_at timestamptz not null default pawl.now(),
  until timestamptz,
  resolved_at timestamptz,
  primary key (tenant, id)
);
create unique index alert_open on pawl.alert (tenant, code, subject) where resolved_at is null;
comment on table pawl.alert is
  'What needs a person and no row of another table shows. One open alert per code and subject; repeats raise its count. '
  'pawl.open_alerts() has these and those that other rows show.';
comment on column pawl.alert.until is 'When it is over unless it is raised again. Null: it stays open until it is resolved.';

create table pawl.refusal (
  tenant text collate "C" not null default '',
  id bigint generated always as identity,
  at timestamptz not null default pawl.now(),
  what text not null,
  subject text not null,
  fence bigint not null,
  holder integer,
  detail text,
  primary key (tenant, id)
);
comment on table pawl.refusal is 'Evidence of writes that were refused because their fence was not the current one. Kept to the newest 10,000.';

-- What a fenced write raises when its fence is no longer the current one; the transaction around it cannot commit.
create function pawl.raise_lease_lost(p_what text, p_id bigint, p_fence bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using
    errcode = 'PW001',
    message = format('%s %s is no longer held under fence %s: another holder may have it', p_what, p_id, p_fence),
    hint = 'Do not retry this write. The current holder continues from what is committed.';
end
$$;

-- With p_for, the alert is over after that time unless it is raised again.
create function pawl.raise_alert(
  p_tenant text, p_code text, p_subject text, p_message text, p_count bigint default 1, p_for interval default null
) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into pawl.alert as a (tenant, code, subject, message, count, until)
  values (p_tenant, p_code, left(p_subject, 500), left(p_message, 2000), p_count, pawl.now() + p_for)
  on conflict (tenant, code, subject) where resolved_at is null
  do update set
    count = excluded.count + case when a.until < excluded.last_at then 0 else a.count end,
    first_at = case when a.until < excluded.last_at then excluded.first_at else a.first_at end,
    last_at = excluded.last_at,
    until = excluded.until,
    message = excluded.message
$$;

create function pawl.resolve_alert(p_tenant text, p_code text, p_subject text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update pawl.alert a
  set resolved_at = pawl.now()
  where a.tenant = p_tenant
    and a.code = p_code
    and a.subject = left(p_subject, 500)
    and a.resolved_at is null
$$;

-- Resolves alerts that are as their caller saw them: one raised again since has a higher count and stays open. Alerts that another
-- transaction is raising are skipped or, with p_wait, waited for.
create function pawl.resolve_alerts(p_tenants text[], p_ids bigint[], p_counts bigint[], p_wait boolean default false)
returns table (code text, subject text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if not p_wait then
    select array_agg(l.tenant), array_agg(l.id), array_agg(l.count) into p_tenants, p_ids, p_counts
    from (
      select a.tenant, a.id, a.count
      from unnest(p_tenants, p_ids, p_counts) g(tenant, id, count)
      join pawl.alert a on a.tenant = g.tenant and a.id = g.id and a.count = g.count
      order by a.tenant, a.code, a.subject
      for update of a skip locked
    ) l;
  end if;
  return query
    update pawl.alert a
    set resolved_at = pawl.now()
    from unnest(p_tenants, p_ids, p_counts) g(tenant, id, count)
    where a.tenant = g.tenant
      and a.id = g.id
      and a.count = g.count
      and a.resolved_at is null
    returning a.code, a.subject;
end
$$;

create table pawl.audit (
  tenant text collate "C" not null default '',
  id bigint generated always as identity,
  at timestamptz not null default pawl.now(),
  actor text,
  action text not null,
  subject text not null,
  reason text not null,
  detail jsonb,
  primary key (tenant, id),
  constraint bounded check (length(actor) <= 200 and length(subject) <= 500 and length(reason) <= 2000)
);
comment on table pawl.audit is 'What people did to data by hand, and why: erasures, skips, unparkings, resumptions, cancellations, retries. Written in the transaction of the act.';

-- Keeps what a person did, in the transaction of the act. Longer strings are cut to the bounds of the table.
create function pawl.write_audit(p_tenant text, p_actor text, p_action text, p_subject text, p_reason text, p_detail jsonb default null)
returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into pawl.audit (tenant, actor, action, subject, reason, detail)
  values (p_tenant, left(p_actor, 200), p_action, left(p_subject, 500), left(p_reason, 2000), p_detail)
$$;

-- In a caller's transaction the level may be raised, never lowered: it is their commit too.
create function pawl.set_durability(p_level text, p_may_lower boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_current text := current_setting('synchronous_commit');
begin
  if p_level = 'replicated' then
    if v_current <> 'remote_apply' then
      perform set_config('synchronous_commit', 'remote_apply', true);
    end if;
  elsif p_level = 'durable' then
    if v_current in ('off', 'local', 'remote_write') then
      perform set_config('synchronous_commit', 'on', true);
    end if;
  elsif p_level = 'relaxed' then
    if p_may_lower then
      perform set_config('synchronous_commit', 'off', true);
    end if;
  else
    raise exception using errcode = '22023', message = format('durability %L is unknown', p_level),
      hint = 'Use relaxed, durable or replicated.';
  end if;
end
$$;

-- Takes away what a handler may have left in its session after its transaction: settings, role, advisory locks, temporary tables,
-- LISTEN and cursors. Prepared statements stay. p_durable raises the session where a role or a database has a lower level.
-- It sets no search path, which it would reset with the other settings (4 of 16 us): every name and operator has its schema instead.
create function pawl.reset_session(p_durable boolean) returns void
language plpgsql as $$
begin
  reset session authorization;
  reset role;
  reset all;
  unlisten *;
  execute 'close all';
  perform pg_catalog.pg_advisory_unlock_all();
  if pg_catalog.pg_my_temp_schema() operator(pg_catalog.<>) 0::pg_catalog.oid then
    discard temp;
  end if;
  if p_durable and pg_catalog.current_setting('synchronous_commit')
      operator(pg_catalog.=) any ('{off,local,remote_write}'::pg_catalog.text[]) then
    set synchronous_commit = on;
  end if;
end
$$;

-- Partitions by day. Each is made standalone and attached, which blocks no writer; the first and the last are open-ended, so no
-- insert ever depends on maintenance having run or on the clock. p_days days from p_from get a partition of their own.
create function pawl.add_day_partitions(p_table text, p_from date, p_days integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_from text := quote_literal(p_from::timestamp at time zone 'UTC');
  v_to text := quote_literal((p_from + p_days)::timestamp at time zone 'UTC');
  v_day date;
begin
  perform pawl.add_partition(p_table, p_table || '_first', 'minvalue', v_from);
  for v_day in select p_from + n from generate_series(0, p_days - 1) n loop
    perform pawl.add_partition(p_table, p_table || '_' || to_char(v_day, 'YYYYMMDD'), quote_literal(v_day::timestamp at time zone 'UTC'),
      quote_literal((v_day + 1)::timestamp at time zone 'UTC'));
  end loop;
  perform pawl.add_partition(p_table, p_table || '_last', v_to, 'maxvalue');
end
$$;

-- Adds one partition unless it is there. It belongs to the owner of its table, also where a member of that role adds it: a migration of the owner
-- changes the table with all its partitions.
create function pawl.add_partition(p_table text, p_name text, p_from text, p_to text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if to_regclass(format('pawl.%I', p_name)) is not null then
    return;
  end if;
  execute format('create table pawl.%I (like pawl.%I including defaults including constraints)', p_name, p_table);
  execute format('alter table pawl.%I owner to %s', p_name,
    (select c.relowner::regrole from pg_class c where c.oid = format('pawl.%I', p_table)::regclass));
  execute format('alter table pawl.%I attach partition pawl.%I for values from (%s) to (%s)', p_table, p_name, p_from, p_to);
end
$$;

-- Runs one statement of ours inside a caller's transaction under the search path of this function, and answers its rows. The statement has the
-- caller's rights, as if the caller had sent it. Its parameters are ($1)[1], ($1)[2] and so on.
create function pawl.run(p_statement text, p_values text[]) returns setof jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_row record;
begin
  for v_row in execute p_statement using p_values loop
    return next to_jsonb(v_row);
  end loop;
end
$$;

-- Refuses an event or a job in a transaction of a projection, which writes its tables and nothing else: a rebuild would add it again.
create function pawl.raise_in_fold(p_projection text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using message = format('the projection ''%s'' only writes its tables: a rebuild would append or enqueue again', p_projection),
    hint = 'Append and enqueue in a reaction: pawl.projections.react.';
end
$$;

-- Returns 0, or refuses in a transaction that carries the name of a projection (pawl.fold, set by move, stay, take-dirty and take-all-dirty). A part of the defaults of
-- pawl.event.seq and pawl.job.fence: a trigger would cost the server 15 µs of each append and 9 µs of each enqueue.
create function pawl.assert_no_fold() returns bigint
language sql volatile
return case when current_setting('pawl.fold', true) <> '' then pawl.raise_in_fold(current_setting('pawl.fold', true)) else 0 end;
