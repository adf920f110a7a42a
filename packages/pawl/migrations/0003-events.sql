-- Events: an insert-only table that writers append to, positions that are given after commit, the inbox, and the record of what people did.

-- CACHE 1: of two writers of one key, the second draws the larger number.
create sequence pawl.event_seq as bigint cache 1;

-- Whether a reader of the log sleeps: is_called. A sequence and not a row, because an append reads it outside of every snapshot for a tenth of the
-- cost of a query on pawl.sleeper, and sees the latest value. An append has its transaction id before it reads; a reader sets the flag before it
-- sleeps, and then waits for every transaction in progress. So one of the two sees the other.
create sequence pawl.reader_sleeps as integer;

-- Notifies if a reader sleeps, and returns 0: a part of the default of pawl.event.seq, which costs an append less than a trigger or a second call.
-- It is inlined into the insert, so it costs one read of the sequence.
create function pawl.wake_readers() returns bigint
language sql volatile
return case when pg_sequence_last_value('pawl.reader_sleeps'::regclass) is null then 0 when pg_notify('pawl_events', '') is null then 0 else 0 end;

-- A UUID of version 7: 48 bits of milliseconds, then random. For servers without uuidv7(): before PostgreSQL 18. Not in SQL, because the planner
-- would inline it into every insert that it plans, at half the cost of the insert.
create function pawl.new_event_id() returns uuid
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return encode(
    set_bit(
      set_bit(
        overlay(uuid_send(gen_random_uuid()) placing substring(int8send((date_part('epoch', pawl.now()) * 1000)::bigint) from 3) from 1 for 6),
        52, 1),
      53, 1),
    'hex')::uuid;
end
$$;

-- The names id, aggregatetype, aggregateid, type and payload are those of Debezium's event router. xid comes before seq, because defaults are
-- computed in this order, and a transaction must have its id before it draws a number, and before it reads whether a reader sleeps.
create table pawl.event (
  xid xid8 not null default pg_current_xact_id(),
  seq bigint not null default nextval('pawl.event_seq') + pawl.wake_readers() + pawl.assert_no_fold(),
  created_at timestamptz not null default pawl.now(),
  id uuid not null default pawl.new_event_id(),
  tenant text collate "C" not null default '',
  channel text collate "C" not null default 'default',
  aggregatetype text collate "C" not null,
  aggregateid text collate "C" not null,
  type text collate "C" not null,
  payload jsonb,
  headers jsonb
) partition by range (created_at);
-- The only index: the sequencer finds what a transaction wrote, and a page names each of its events by this pair.
create index event_xid on pawl.event (xid, seq);
comment on table pawl.event is
  'Events, by the day they were appended. Insert-only: a row is never changed but by an erasure, and goes with its partition. Insert it '
  'while the writer holds the key (its row lock), or two writers of one key have no order.';
comment on column pawl.event.xid is 'The top-level transaction that wrote it. Leave it to its default.';
comment on column pawl.event.seq is
  'Drawn in the order of inserts, after the transaction has its id. Leave it to its default, which wakes readers too. A transaction that is to be prepared '
  'cannot notify: it appends by pawl.append(..., wake => false).';
comment on column pawl.event.payload is 'Null only after an erasure.';
-- The server's own function makes an append a fifth cheaper.
do $$
begin
  if to_regprocedure('pg_catalog.uuidv7()') is not null then
    alter table pawl.event alter column id set default uuidv7();
  end if;
end
$$;

select pawl.add_day_partitions('event', (pawl.now() at time zone 'UTC')::date, 7);

create table pawl.log_page (
  tenant text collate "C" not null default '',
  first_position bigint not null,
  last_position bigint not null,
  from_at timestamptz not null,
  to_at timestamptz not null,
  generation integer not null,
  channels text[] collate "C" not null,
  xids xid8[] not null,
  seqs bigint[] not null,
  primary key (tenant, last_position),
  constraint dense check (cardinality(seqs) = last_position - first_position + 1 and cardinality(xids) = cardinality(seqs)),
  constraint bounded check (cardinality(seqs) between 1 and 200)
);
comment on table pawl.log_page is
  'The log: which event has which position, up to 200 to a row. Given after commit, dense, never changed. from_at and to_at are the first '
  'and the last created_at, so that a reader opens only the partitions of those days.';

create table pawl.sequencer (
  tenant text collate "C" not null default '',
  n bigint not null default 0,
  position bigint not null default 0,
  generation integer not null default 0,
  system_id bigint not null default 0,
  timeline integer not null default 0,
  snapshot pg_snapshot not null default pg_current_snapshot(),
  rebased_seq bigint not null default 0,
  rebased_xid xid8 not null default '0',
  removed_until bigint not null default 0,
  ticked_at timestamptz not null default pawl.now(),
  primary key (tenant, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
comment on table pawl.sequencer is
  'One row: how far positions were given. Whatever is visible in snapshot has its position. A new row belongs to no cluster, so the first tick '
  'reads every event.';
comment on column pawl.sequencer.n is
  'Grows with every tick: the highest entry of the index is the row, however many dead ones an old snapshot keeps below it (pawl.log_head).';
comment on column pawl.sequencer.rebased_seq is
  'Up to this number an event may carry a transaction id of another cluster. Above rebased_xid it does, and has its position; up to it the log is asked.';
comment on column pawl.sequencer.removed_until is 'Up to this position retention may have removed events.';
insert into pawl.sequencer default values;

-- The row, found from the end of its index.
create view pawl.log_head as
select s.tenant, s.position, s.generation, s.snapshot, s.rebased_seq, s.rebased_xid, s.removed_until, s.ticked_at
from pawl.sequencer s
where s.tenant = ''
order by s.n desc
limit 1;

-- The cluster and its timeline. A role that may not read them gets -1 and 0, and relies on transaction ids that run backwards.
create function pawl.cluster(out system_id bigint, out timeline integer)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  select c.system_identifier into system_id from pg_control_system() c;
  timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
exception when insufficient_privilege or undefined_function then
  system_id := coalesce(system_id, -1);
  timeline := 0;
end
$$;

-- The current snapshot with the calling transaction among those in progress, which pg_current_snapshot() leaves out. Otherwise a transaction that
-- ticks and then appends would be taken for complete.
create function pawl.snapshot_without_me(p_snapshot pg_snapshot) returns pg_snapshot
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_me xid8 := pg_current_xact_id_if_assigned();
begin
  if v_me is null or v_me >= pg_snapshot_xmax(p_snapshot) then
    return p_snapshot;
  end if;
  return format('%s:%s:%s', pg_snapshot_xmin(p_snapshot), pg_snapshot_xmax(p_snapshot), (
    select string_agg(x.xid::text, ',' order by x.xid)
    from (select pg_snapshot_xip(p_snapshot) as xid union select v_me) x
  ))::pg_snapshot;
end
$$;

-- Gives a position to each event that became visible since the last tick. The outcome is 'sequenced', 'idle' (nothing new), 'busy' (another
-- session ticks), 'large' (more than p_limit: call it without a limit, and without a statement timeout) or 'foreign' (another cluster than the last
-- time: call pawl.rebase_events()). A few events come with the answer, as JSON, so that an idle reader need not query them.
--
-- These events are the difference of two full snapshots: their transaction had not begun in the last one (at or above its xmax) or was in progress
-- in it (its xip), and is visible in the current one. So no event waits for another's open transaction, and a late commit loses nothing. Within a
-- tick events are ordered by seq: of two writers of one key the second inserted after the first had committed, so a snapshot that has the second
-- event has the first one too, with a smaller seq.
--
-- The current snapshot is captured once. Each statement below has a newer one of its own, and pg_visible_in_snapshot holds them to the captured one.
-- A window gets its positions at once: in parts, each part would read it again, and newer events would wait for the last part.
create function pawl.sequence_events(
  p_limit integer default 20000,
  out outcome text,
  out sequenced integer,
  out head bigint,
  out generation integer,
  out events text
)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_row pawl.sequencer;
  v_from timestamptz;
  v_to timestamptz;
  v_system_id bigint;
  v_timeline integer;
  v_current pg_snapshot;
  v_ended xid8[];
  v_known_xids xid8[];
  v_known_seqs bigint[];
begin
  sequenced := 0;
  select c.system_id, c.timeline into v_system_id, v_timeline from pawl.cluster() c;

  -- First a read without a lock: locking the row takes a transaction id and a flush, fifty times a second for nothing.
  select s.* into strict v_row from pawl.sequencer s where s.tenant = '' order by s.n desc limit 1;
  head := v_row.position;
  generation := v_row.generation;
  v_current := pg_current_snapshot();
  if v_row.system_id <> v_system_id or pg_snapshot_xmax(v_current) < pg_snapshot_xmax(v_row.snapshot) then
    outcome := 'foreign';
    return;
  end if;
  v_ended := array(select x from pg_snapshot_xip(v_row.snapshot) x where pg_visible_in_snapshot(x, v_current));
  if not exists (select from pawl.event e where e.xid >= pg_snapshot_xmax(v_row.snapshot) and e.xid < pg_snapshot_xmax(v_current))
    and (cardinality(v_ended) = 0 or not exists (select from pawl.event e where e.xid = any (v_ended)))
    -- Once a second the window moves past transactions that are still open, or each tick would read their unfinished rows again.
    and (v_row.ticked_at > pawl.now() - interval '1 second'
      or not exists (select from pg_snapshot_xip(v_current) x where x >= pg_snapshot_xmax(v_row.snapshot)))
  then
    outcome := 'idle';
    return;
  end if;

  select s.* into v_row from pawl.sequencer s where s.tenant = '' order by s.n desc limit 1 for update skip locked;
  if not found then
    outcome := 'busy';
    return;
  end if;
  -- Others see a position only after this transaction's commit, and with this setting only after its flush.
  perform pawl.set_durability('durable');
  if v_row.system_id <> v_system_id then
    outcome := 'foreign';
    return;
  end if;
  v_current := pawl.snapshot_without_me(pg_current_snapshot());
  v_ended := array(select x from pg_snapshot_xip(v_row.snapshot) x where pg_visible_in_snapshot(x, v_current));
  if v_row.timeline <> v_timeline then
    v_row.generation := v_row.generation + 1;
  end if;
  if least(pg_snapshot_xmax(v_row.snapshot), (select min(x) from unnest(v_ended) x)) <= v_row.rebased_xid then
    select k.xids, k.seqs into v_known_xids, v_known_seqs
    from pawl.known_positions(pg_snapshot_xmax(v_row.snapshot), least(pg_snapshot_xmax(v_current), v_row.rebased_xid), v_ended, v_row.rebased_seq) k;
  end if;

  with fresh as materialized (
    select w.xid, w.seq, w.created_at, w.channel, row_number() over (order by w.seq, w.xid) as n
    from (
      -- Numbered outside of the limit, so the sort keeps at most p_limit + 1 rows of any window.
      select w.xid, w.seq, w.created_at, w.channel
      from (
        select e.xid, e.seq, e.created_at, e.channel
        from pawl.event e
        where e.xid >= pg_snapshot_xmax(v_row.snapshot)
          and e.xid < pg_snapshot_xmax(v_current)
        union all
        select e.xid, e.seq, e.created_at, e.channel
        from pawl.event e
        where e.xid = any (v_ended)
      ) w
      where pg_visible_in_snapshot(w.xid, v_current)
        and (w.seq > v_row.rebased_seq or w.xid <= v_row.rebased_xid)
        -- Not a join: the planner would hash the window.
        and (v_known_xids is null or (w.xid, w.seq) not in (select k.xid, k.seq from unnest(v_known_xids, v_known_seqs) k(xid, seq)))
      order by w.seq, w.xid
      limit p_limit::bigint + 1
    ) w
  ),
  pages as (
    insert into pawl.log_page (first_position, last_position, from_at, to_at, generation, channels, xids, seqs)
    select v_row.position + min(f.n), v_row.position + max(f.n), min(f.created_at), max(f.created_at), v_row.generation,
      array_agg(distinct f.channel), array_agg(f.xid order by f.n), array_agg(f.seq order by f.n)
    from fresh f
    where p_limit is null
      or (select count(*) from fresh) <= p_limit
    group by (f.n - 1) / 200
    order by 1
  )
  select count(*), min(f.created_at), max(f.created_at) into sequenced, v_from, v_to from fresh f;

  if sequenced > p_limit then
    sequenced := 0;
    outcome := 'large';
    return;
  end if;
  update pawl.sequencer s
  set position = v_row.position + sequenced,
    n = s.n + 1,
    generation = v_row.generation,
    timeline = v_timeline,
    snapshot = v_current,
    ticked_at = pawl.now()
  where s.tenant = ''
    and s.n = v_row.n
  returning s.position, s.generation into head, generation;
  outcome := 'sequenced';
  -- The days are variables, so that the plan opens their partitions and no others.
  if sequenced between 1 and 16 then
    select case when sum(pg_column_size(e.payload) + coalesce(pg_column_size(e.headers), 0)) < 50000 then
      json_agg(json_build_array(p.first_position + u.n - 1, e.xid::text, e.id, date_part('epoch', e.created_at), e.tenant, e.channel, e.aggregatetype,
        e.aggregateid, e.type, e.payload, e.headers, pawl.event_bucket(e.tenant, e.aggregateid)) order by u.n)::text end
    into events
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    join pawl.event e on e.xid = u.xid and e.seq = u.seq and e.created_at between v_from and v_to
    where p.tenant = ''
      and p.last_position = head;
  end if;
end
$$;

-- Of the events of a window that may be from before a rebase, those that have a position. The pages of their time are read once for all of them.
create function pawl.known_positions(p_from xid8, p_to xid8, p_ended xid8[], p_rebased_seq bigint, out xids xid8[], out seqs bigint[])
language sql stable set search_path = pg_catalog, pg_temp set enable_hashjoin = on as $$
  with old as materialized (
    select e.xid, e.seq, e.created_at
    from pawl.event e
    where e.xid between p_from and p_to
      and e.seq <= p_rebased_seq
    union all
    select e.xid, e.seq, e.created_at
    from pawl.event e
    where e.xid = any (p_ended)
      and e.seq <= p_rebased_seq
  )
  select array_agg(o.xid), array_agg(o.seq)
  from (
    select u.xid, u.seq
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) u(xid, seq)
    where p.tenant = ''
      and p.from_at <= (select max(m.created_at) from old m)
      and p.to_at >= (select min(m.created_at) from old m)
    offset 0
  ) k
  join old o on o.xid = k.xid and o.seq = k.seq
$$;

-- After a restore into another cluster the transaction ids of old events mean nothing. One statement gives every visible event without a position
-- its position, by seq, and the log continues from the snapshot of that statement. It reads every kept event once.
create function pawl.rebase_events(out sequenced integer, out head bigint, out generation integer)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_row pawl.sequencer;
  v_system_id bigint;
  v_timeline integer;
  v_snapshot pg_snapshot;
  v_last_seq bigint;
  v_top_seq bigint;
  v_foreign_seq bigint;
  v_first_xid xid8;
begin
  sequenced := 0;
  select c.system_id, c.timeline into v_system_id, v_timeline from pawl.cluster() c;
  -- In this order: a transaction with a higher id than this one draws numbers above the last one. Not if this one has its id already.
  if pg_current_xact_id_if_assigned() is null then
    select q.last_value - (not q.is_called)::integer into v_last_seq from pawl.event_seq q;
    v_first_xid := pg_current_xact_id();
  end if;
  -- It may take minutes: a second caller gets a null head and does not wait.
  select s.* into v_row from pawl.sequencer s where s.tenant = '' for update skip locked;
  if not found then
    return;
  end if;
  head := v_row.position;
  generation := v_row.generation;
  if v_row.system_id = v_system_id and pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax(v_row.snapshot) then
    return;
  end if;
  perform pawl.set_durability('durable');
  -- Everything is read once: index scans would be slower.
  perform set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true), set_config('plan_cache_mode', 'auto', true);
  select greatest(v_row.position, max(p.last_position)) into v_row.position from pawl.log_page p where p.tenant = '';

  with fresh as materialized (
    select e.xid, e.seq, e.created_at, e.channel, row_number() over (order by e.seq, e.xid) as n
    from pawl.event e
    where e.xid <> pg_current_xact_id()
      and not exists (
        select
        from (select u.xid, u.seq from pawl.log_page p cross join lateral unnest(p.xids, p.seqs) u(xid, seq) where p.tenant = '' offset 0) k
        where k.xid = e.xid
          and k.seq = e.seq
      )
  ),
  pages as (
    insert into pawl.log_page (first_position, last_position, from_at, to_at, generation, channels, xids, seqs)
    select v_row.position + min(f.n), v_row.position + max(f.n), min(f.created_at), max(f.created_at), v_row.generation + 1,
      array_agg(distinct f.channel), array_agg(f.xid order by f.n), array_agg(f.seq order by f.n)
    from fresh f
    group by (f.n - 1) / 200
    order by 1
  )
  select count(*), pg_current_snapshot(), (
      -- Visible, but not by its transaction id: that is another cluster's.
      select max(e.seq)
      from pawl.event e
      where e.xid <> pg_current_xact_id()
        and not pg_visible_in_snapshot(e.xid, pg_current_snapshot())
    )
  into sequenced, v_snapshot, v_foreign_seq
  from fresh f;

  -- A copy without the sequence's value would draw numbers a second time.
  select greatest(max(e.seq), q.last_value) into v_top_seq from pawl.event e right join pawl.event_seq q on true group by q.last_value;
  if v_top_seq > (select q.last_value from pawl.event_seq q) then
    perform setval('pawl.event_seq', v_top_seq);
  end if;
  -- Then seq does not separate the events of this cluster from those of another, and each is looked up in the log.
  if v_first_xid is null or v_foreign_seq > v_last_seq then
    v_last_seq := v_top_seq;
    v_first_xid := '9223372036854775807';
  end if;
  update pawl.sequencer s
  set position = v_row.position + rebase_events.sequenced,
    generation = s.generation + 1,
    system_id = v_system_id,
    timeline = v_timeline,
    snapshot = pawl.snapshot_without_me(v_snapshot),
    rebased_seq = v_last_seq,
    rebased_xid = v_first_xid,
    ticked_at = pawl.now()
  where s.tenant = ''
  returning s.position, s.generation into head, generation;
end
$$;

-- Drops a partition that retention has detached; false: not all of it could be dropped. The sequencer missed an event that was committed during the
-- detach, or gave it a position after those that retention had checked. Such an event is inserted into the table again, with its id and seq, and the
-- next tick searches for every event without a position, as after a restore.
create function pawl.drop_detached_events(p_name text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = on set enable_hashjoin = on as $$
declare
  v_late text := format($q$
    from pawl.%I e
    where not exists (
      select
      from (
        select u.xid, u.seq
        from pawl.log_page p
        cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
        where p.tenant = ''
          and p.first_position + u.n - 1 <= (select s.removed_until from pawl.sequencer s where s.tenant = '')
        offset 0
      ) k
      where k.xid = e.xid
        and k.seq = e.seq
    )$q$, p_name);
  v_has_late boolean;
begin
  begin
    execute format('lock table pawl.%I in access exclusive mode', p_name);
  exception when undefined_table then
    return true;
  end;
  if (select c.relispartition from pg_class c where c.oid = to_regclass(format('pawl.%I', p_name))) then
    return false;
  end if;
  -- Counted, because for an EXISTS the planner would probe event by event.
  execute format('select count(*) > 0 %s', v_late) into v_has_late;
  if v_has_late then
    -- Before the table, as a tick takes them.
    update pawl.sequencer s set system_id = 0 where s.tenant = '';
    -- No partition may cover these days any more.
    perform pawl.extend_day_partitions('event');
    execute format('insert into pawl.event (xid, seq, created_at, id, tenant, channel, aggregatetype, aggregateid, type, payload, headers)
      select e.xid, e.seq, e.created_at, e.id, e.tenant, e.channel, e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers %s', v_late);
  end if;
  execute format('drop table pawl.%I', p_name);
  return not v_has_late;
end
$$;

-- A shard is a range of 1024 buckets. SHA-256, because PostgreSQL's own hashes may change with a release, and a key must keep its shard.
create function pawl.event_bucket(p_tenant text, p_key text) returns integer
language sql immutable parallel safe
return ((get_byte(sha256(convert_to(p_tenant || chr(31) || p_key, 'UTF8')), 0) << 8)
  | get_byte(sha256(convert_to(p_tenant || chr(31) || p_key, 'UTF8')), 1)) & 1023;

create function pawl.note_sleeping_readers() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- One at a time: otherwise a reader that wakes up could clear a flag that another has set and not yet committed.
  perform pg_advisory_xact_lock(x'70617765'::integer, 0);
  perform setval('pawl.reader_sleeps', 1, exists (select from pawl.sleeper s where s.tenant = '' and s.queue = 'pawl.events'));
  return null;
end
$$;
create trigger sleeping_reader_added after insert on pawl.sleeper
  for each row when (new.queue = 'pawl.events') execute function pawl.note_sleeping_readers();
create trigger sleeping_reader_gone after delete on pawl.sleeper
  for each row when (old.queue = 'pawl.events') execute function pawl.note_sleeping_readers();

-- Raises the reason why an event is refused.
create function pawl.raise_bad_event(p_tenant text, p_channel text, p_aggregatetype text, p_aggregateid text, p_type text, p_payload jsonb, p_headers jsonb)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if length(p_tenant) <= 100 and length(p_channel) between 1 and 100 and length(p_aggregatetype) between 1 and 200
    and length(p_aggregateid) between 1 and 500 and length(p_type) between 1 and 200
  then
    raise exception using errcode = '22023', message = 'the payload of an event is larger than 16 MB, or its headers are larger than 64 kB or not an object',
      hint = 'Store it elsewhere and append a reference.';
  end if;
  raise exception using errcode = '22023', message = 'a name of an event is missing, empty or too long',
    hint = 'tenant: up to 100 characters, channel: 1 to 100, type and aggregatetype: 1 to 200, aggregateid: 1 to 500';
end
$$;

-- Appends one event and returns its id, transaction and number in one string, which costs the caller less than a row. p_wake false: for a
-- transaction that will be prepared, which cannot notify.
create function pawl.append_event(
  p_tenant text,
  p_channel text,
  p_aggregatetype text,
  p_aggregateid text,
  p_type text,
  p_payload jsonb,
  p_headers jsonb default null,
  p_wake boolean default true
) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_answer text;
begin
  if (length(p_tenant) <= 100 and length(p_channel) between 1 and 100 and length(p_aggregatetype) between 1 and 200
    and length(p_aggregateid) between 1 and 500 and length(p_type) between 1 and 200
    and coalesce(pg_column_size(p_payload), 0) <= 16777216 and coalesce(pg_column_size(p_headers), 0) <= 65536
    and coalesce(jsonb_typeof(p_headers), 'object') = 'object') is not true
  then
    perform pawl.raise_bad_event(p_tenant, p_channel, p_aggregatetype, p_aggregateid, p_type, p_payload, p_headers);
  end if;
  insert into pawl.event as n (seq, tenant, channel, aggregatetype, aggregateid, type, payload, headers)
  values (nextval('pawl.event_seq') + pawl.assert_no_fold() + case when p_wake then pawl.wake_readers() else 0 end, p_tenant, p_channel, p_aggregatetype, p_aggregateid, p_type,
    coalesce(p_payload, 'null'), p_headers)
  returning n.id || ' ' || n.xid || ' ' || n.seq into v_answer;
  return v_answer;
end
$$;

-- Appends many, given as a JSON array of {type, aggregatetype, aggregateid, payload, channel, headers}, in that order.
create function pawl.append_events(p_tenant text, p_events jsonb, p_wake boolean default true) returns setof text
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- The numbers are drawn below the insert itself, and the transaction must have its id before.
  perform pg_current_xact_id(), pawl.assert_no_fold();
  -- Checked in the same pass: to parse the array twice would cost a fifth more.
  return query
    insert into pawl.event as n (seq, tenant, channel, aggregatetype, aggregateid, type, payload, headers)
    select nextval('pawl.event_seq'), p_tenant, coalesce(e.channel, 'default'), e.aggregatetype, e.aggregateid, e.type, coalesce(e.payload, 'null'),
      nullif(e.headers, 'null')
    from jsonb_to_recordset(p_events) e(type text, aggregatetype text, aggregateid text, payload jsonb, channel text, headers jsonb)
    where case
        when length(p_tenant) <= 100 and length(coalesce(e.channel, 'default')) between 1 and 100 and length(e.aggregatetype) between 1 and 200
          and length(e.aggregateid) between 1 and 500 and length(e.type) between 1 and 200
          and coalesce(pg_column_size(e.payload), 0) <= 16777216 and coalesce(pg_column_size(e.headers), 0) <= 65536
          and coalesce(jsonb_typeof(e.headers), 'object') in ('object', 'null')
        then true
        else pawl.raise_bad_event(p_tenant, coalesce(e.channel, 'default'), e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers) is null
      end
    returning n.id || ' ' || n.xid || ' ' || n.seq;
  -- Once for all of them.
  if p_wake then
    perform pawl.wake_readers();
  end if;
end
$$;

-- Appends the events of one key, for a folder that makes them of rows: p_types and p_payloads are read in order, side by side. An array holds at
-- most 1 GB, so a caller with any number of rows calls it once per few hundred of them. Returns how many events it appended.
create function pawl.append_key_events(p_tenant text, p_aggregatetype text, p_aggregateid text, p_types text[], p_payloads jsonb[]) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_appended integer;
begin
  -- The numbers are drawn below the insert itself, and the transaction must have its id before.
  perform pg_current_xact_id(), pawl.assert_no_fold();
  insert into pawl.event (seq, tenant, aggregatetype, aggregateid, type, payload)
  select nextval('pawl.event_seq'), p_tenant, p_aggregatetype, p_aggregateid, e.type, coalesce(e.payload, 'null')
  from unnest(p_types, p_payloads) e(type, payload)
  where case
      when length(p_tenant) <= 100 and length(p_aggregatetype) between 1 and 200 and length(p_aggregateid) between 1 and 500
        and length(e.type) between 1 and 200 and coalesce(pg_column_size(e.payload), 0) <= 16777216
      then true
      else pawl.raise_bad_event(p_tenant, 'default', p_aggregatetype, p_aggregateid, e.type, e.payload, null) is null
    end;
  get diagnostics v_appended = row_count;
  if v_appended > 0 then
    perform pawl.wake_readers();
  end if;
  return v_appended;
end
$$;

-- Appends events of one channel, for a folder that makes them of rows: the arrays are read in order, side by side. A JSON array, as append_events takes
-- it, costs four times as much. Returns how many events it appended.
create function pawl.append_row_events(
  p_tenant text,
  p_channel text,
  p_aggregatetypes text[],
  p_aggregateids text[],
  p_types text[],
  p_payloads jsonb[],
  p_headers jsonb[]
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_appended integer;
begin
  -- The numbers are drawn below the insert itself, and the transaction must have its id before.
  perform pg_current_xact_id(), pawl.assert_no_fold();
  insert into pawl.event (seq, tenant, channel, aggregatetype, aggregateid, type, payload, headers)
  select nextval('pawl.event_seq'), p_tenant, p_channel, e.aggregatetype, e.aggregateid, e.type, coalesce(e.payload, 'null'), e.headers
  from unnest(p_aggregatetypes, p_aggregateids, p_types, p_payloads, p_headers) e(aggregatetype, aggregateid, type, payload, headers)
  where case
      when length(p_tenant) <= 100 and length(p_channel) between 1 and 100 and length(e.aggregatetype) between 1 and 200
        and length(e.aggregateid) between 1 and 500 and length(e.type) between 1 and 200 and coalesce(pg_column_size(e.payload), 0) <= 16777216
        and coalesce(pg_column_size(e.headers), 0) <= 65536 and coalesce(jsonb_typeof(e.headers), 'object') = 'object'
      then true
      else pawl.raise_bad_event(p_tenant, p_channel, e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers) is null
    end;
  get diagnostics v_appended = row_count;
  if v_appended > 0 then
    perform pawl.wake_readers();
  end if;
  return v_appended;
end
$$;

-- Removes payload and headers of the events of one key; their ids, order and positions stay. With p_types, p_like, p_from and p_to only events of these
-- types whose payload contains p_like, appended in that time: other days are not read. Returns the number of events.
create function pawl.erase_events(
  p_tenant text,
  p_aggregatetype text,
  p_aggregateid text,
  p_types text[] default null,
  p_like jsonb default null,
  p_from timestamptz default '-infinity',
  p_to timestamptz default 'infinity'
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_erased integer;
begin
  update pawl.event e
  set payload = null,
    headers = '{"erased": true}'
  where e.created_at >= p_from
    and e.created_at <= p_to
    and e.tenant = p_tenant
    and e.aggregatetype = p_aggregatetype
    and e.aggregateid = p_aggregateid
    and e.payload is not null
    and (p_types is null or e.type = any (p_types))
    and (p_like is null or e.payload @> p_like);
  get diagnostics v_erased = row_count;
  return v_erased;
end
$$;

-- Append from plain SQL, a trigger, or any language: select pawl.append('OrderPlaced', 'order', '42', '{"total": 7}');
create function pawl.append(
  type text,
  aggregatetype text,
  aggregateid text,
  payload jsonb default 'null',
  channel text default 'default',
  headers jsonb default null,
  tenant text default '',
  wake boolean default true
) returns uuid
language sql set search_path = pg_catalog, pg_temp as $$
  select split_part(pawl.append_event(append.tenant, append.channel, append.aggregatetype, append.aggregateid, append.type, append.payload,
    append.headers, append.wake), ' ', 1)::uuid
$$;

create table pawl.inbox (
  tenant text collate "C" not null default '',
  source text collate "C" not null,
  event_id text collate "C" not null,
  position bigint,
  received_at timestamptz not null default pawl.now(),
  expires_at timestamptz not null,
  primary key (tenant, source, event_id)
);
create index inbox_expiry on pawl.inbox (expires_at);
comment on table pawl.inbox is
  'Ids of outside events that were ingested, so that each is appended once; forgotten after expires_at, if their source has moved on from position.';

create table pawl.inbox_source (
  tenant text collate "C" not null default '',
  source text collate "C" not null,
  position bigint not null,
  moved_at timestamptz not null default pawl.now(),
  primary key (tenant, source)
) with (fillfactor = 50);
comment on table pawl.inbox_source is 'How far each outside source was read. It moves in the transaction that appends its events.';

-- Appends the events of one source at one position: a JSON array as for append_events, each with the source's own id in event_id. Two calls for one
-- source wait for each other at its row. Events below the source's position were ingested before and are ignored, even if their ids are forgotten; at
-- the position ids decide, so several calls may send the events of one source transaction. p_after is the position before this one, according to the
-- source: if it was never ingested, events are missing.
create function pawl.ingest_events(
  p_tenant text,
  p_source text,
  p_position bigint,
  p_after bigint,
  p_events jsonb,
  p_keep_ms bigint,
  p_wake boolean default true,
  out outcome text,
  out was bigint,
  out reached bigint,
  out ingested integer,
  out repeated integer
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_fresh jsonb;
begin
  ingested := 0;
  repeated := jsonb_array_length(p_events);
  if coalesce(length(p_source), 0) not between 1 and 200
    or exists (select from jsonb_to_recordset(p_events) e(event_id text) where coalesce(length(e.event_id), 0) not between 1 and 500)
  then
    raise exception using errcode = '22023', message = 'the source or the id of an event is missing, empty or too long',
      hint = 'source: 1 to 200 characters, id: 1 to 500';
  end if;
  if p_position is not null then
    -- The row is created if there is none, so that there is one to lock; its first position says that nothing was read.
    insert into pawl.inbox_source (tenant, source, position)
    values (p_tenant, p_source, coalesce(p_after, p_position - 1))
    on conflict do nothing;
    select s.position into strict was from pawl.inbox_source s where s.tenant = p_tenant and s.source = p_source for no key update;
    reached := was;
    if p_position < was then
      outcome := 'replayed';
      return;
    end if;
    if p_after > was then
      outcome := 'gap';
      return;
    end if;
  end if;

  -- In order of the id, so that two calls with the same ids in different orders do not deadlock.
  with given as materialized (
    select distinct on (e.value ->> 'event_id') e.value, e.n
    from jsonb_array_elements(p_events) with ordinality e(value, n)
    order by e.value ->> 'event_id', e.n
  ),
  taken as (
    insert into pawl.inbox (tenant, source, event_id, position, expires_at)
    select p_tenant, p_source, g.value ->> 'event_id', p_position, pawl.now() + p_keep_ms * interval '1 millisecond'
    from given g
    order by 3
    on conflict do nothing
    returning event_id
  )
  select jsonb_agg(g.value || jsonb_build_object('headers', coalesce(nullif(g.value -> 'headers', 'null'), '{}')
      || jsonb_build_object('source', p_source, 'sourceid', t.event_id)) order by g.n)
  into v_fresh
  from taken t
  join given g on g.value ->> 'event_id' = t.event_id;

  if v_fresh is not null then
    perform from pawl.append_events(p_tenant, v_fresh, p_wake);
    ingested := jsonb_array_length(v_fresh);
    repeated := repeated - ingested;
  end if;
  if p_position > was then
    reached := p_position;
    update pawl.inbox_source s set position = p_position, moved_at = pawl.now() where s.tenant = p_tenant and s.source = p_source;
  end if;
  outcome := case when ingested > 0 then 'ingested' else 'replayed' end;
end
$$;

-- Whether the open-ended last partition of a table that is partitioned by days has rows of the coming p_days, or of earlier ones. A later row is
-- from a clock that was ahead, and stays there until its day.
create function pawl.is_last_day_used(p_table text, p_days integer default 7) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_used boolean;
begin
  execute format('select exists (select from pawl.%I where %I < %L)', p_table || '_last', pawl.partition_column(p_table),
    ((pawl.now() at time zone 'UTC')::date + p_days)::timestamp at time zone 'UTC') into v_is_used;
  return v_is_used;
end
$$;

-- Whether a table that is partitioned by days needs partitions: fewer than p_days - 3 days ahead, rows in its open-ended last partition, or days
-- between the open-ended first one and the first kept day.
create function pawl.lacks_days(p_table text, p_days integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return pawl.is_last_day_used(p_table, p_days) or (
    select max(d.from_at) < ((pawl.now() at time zone 'UTC')::date + p_days - 3)::timestamp at time zone 'UTC' or min(d.from_at) <> min(d.to_at)
    from pawl.day_partitions(p_table) d
  );
end
$$;

-- Creates the partitions of the coming days; false: there was nothing to do. One transaction: the open-ended partitions are detached, get their new
-- bounds and are attached again, so an insert finds a partition at every moment. After a pause of more than p_days the last one keeps its rows
-- and becomes an ordinary partition of several days. It locks the whole table for an instant, waits for that at most 200 ms, and otherwise fails with
-- 55P03: rows go to the open-ended partition until the next run.
create function pawl.extend_day_partitions(p_table text, p_days integer default 7) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_first text := p_table || '_first';
  v_last text := p_table || '_last';
  v_used text;
  v_columns text;
  v_column text := pawl.partition_column(p_table);
  v_today date;
  v_oldest timestamptz;
  v_until date;
  v_ahead date;
  v_used_to date;
begin
  if not pawl.lacks_days(p_table, p_days) then
    return false;
  end if;
  perform set_config('lock_timeout', '200ms', true);
  execute format('lock table only pawl.%I in access exclusive mode', p_table);
  -- No insert can run now, and another session may have done it since the first check.
  if not pawl.lacks_days(p_table, p_days) then
    return false;
  end if;
  v_today := (pawl.now() at time zone 'UTC')::date;
  select min(d.from_at), (max(d.from_at) at time zone 'UTC')::date into v_oldest, v_until from pawl.day_partitions(p_table) d;
  v_ahead := greatest(v_until + 1, v_today + p_days);
  execute format('alter table pawl.%I detach partition pawl.%I', p_table, v_first);
  execute format('alter table pawl.%I attach partition pawl.%I for values from (minvalue) to (%L)', p_table, v_first, v_oldest);
  execute format('alter table pawl.%I detach partition pawl.%I', p_table, v_last);
  execute format('select (max(%1$I) at time zone ''UTC'')::date + 1 from pawl.%2$I where %1$I < %3$L', v_column, v_last,
    v_ahead::timestamp at time zone 'UTC') into v_used_to;
  -- Past days need no partition each.
  v_used_to := greatest(v_used_to, case when v_until < v_today then v_today end);
  if v_used_to is null then
    perform pawl.add_day_partitions(p_table, v_until, v_ahead - v_until);
    execute format('alter table pawl.%I attach partition pawl.%I for values from (%L) to (maxvalue)', p_table, v_last,
      v_ahead::timestamp at time zone 'UTC');
    return true;
  end if;
  v_used := p_table || '_' || to_char(v_until, 'YYYYMMDD');
  execute format('alter table pawl.%I rename to %I', v_last, v_used);
  perform pawl.add_day_partitions(p_table, v_used_to, greatest(1, v_ahead - v_used_to));
  -- Rows from a clock that was ahead would keep this partition open until their time.
  select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into v_columns
  from pg_attribute a
  where a.attrelid = format('pawl.%I', p_table)::regclass
    and a.attnum > 0
    and not a.attisdropped
    and a.attgenerated = '';
  execute format('with ahead as (delete from pawl.%1$I where %2$I >= %3$L returning %5$s) insert into pawl.%4$I (%5$s) select %5$s from ahead', v_used,
    v_column, v_ahead::timestamp at time zone 'UTC', p_table, v_columns);
  execute format('alter table pawl.%I attach partition pawl.%I for values from (%L) to (%L)', p_table, v_used,
    v_until::timestamp at time zone 'UTC', v_used_to::timestamp at time zone 'UTC');
  return true;
end
$$;

-- The partitions of a table that is partitioned by days, with their bounds; a null bound is open.
create function pawl.day_partitions(p_table text)
returns table (name text, from_at timestamptz, to_at timestamptz, is_detaching boolean)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.relname::text, (b.bound[1])::timestamptz, (b.bound[2])::timestamptz, i.inhdetachpending
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  cross join lateral (
    select array[
      nullif(substring(pg_get_expr(c.relpartbound, c.oid) from $r$FROM \('?([^')]+)'?\)$r$), 'MINVALUE'),
      nullif(substring(pg_get_expr(c.relpartbound, c.oid) from $r$TO \('?([^')]+)'?\)$r$), 'MAXVALUE')
    ] as bound
  ) b
  where i.inhparent = to_regclass(format('pawl.%I', p_table))
$$;

create function pawl.partition_column(p_table text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select a.attname::text
  from pg_partitioned_table t
  join pg_attribute a on a.attrelid = t.partrelid and a.attnum = t.partattrs[0]
  where t.partrelid = to_regclass(format('pawl.%I', p_table))
$$;
