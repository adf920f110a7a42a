-- Projections, reactions and sinks: which generation is live, how far each cursor has come and who holds it, keys that wait for a person, and
-- entities that a state projection must refresh.

create table pawl.projection (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  kind text collate "C" not null,
  live_generation integer not null,
  created_at timestamptz not null default pawl.now(),
  switched_at timestamptz,
  primary key (tenant, name),
  constraint kind_known check (kind in ('log', 'state', 'reaction', 'sink'))
);
comment on table pawl.projection is 'One row per projection, reaction or sink. Readers see the tables of the live generation; a rebuild is another one beside it.';

create table pawl.cursor (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  generation integer not null default 1,
  shard integer not null default 0,
  shards integer not null default 1,
  kind text collate "C" not null,
  channel text collate "C",
  is_live boolean not null default false,
  fence bigint not null default 0,
  holder integer,
  state text collate "C" not null default 'running',
  reason text,
  stopped_at timestamptz,
  is_tripped boolean not null default false,
  hold_at bigint,
  hold_until timestamptz,
  max_lag interval,
  resumed_at timestamptz not null default '-infinity',
  created_at timestamptz not null default pawl.now(),
  primary key (tenant, name, generation, shard),
  constraint cursor_projection foreign key (tenant, name) references pawl.projection (tenant, name),
  constraint kind_known check (kind in ('log', 'state', 'reaction', 'sink')),
  constraint state_known check (state in ('running', 'paused', 'stale', 'latched')),
  constraint shard_known check (shard between 0 and shards - 1 and shards between 1 and 1024),
  constraint hold_known check ((hold_at is null) = (hold_until is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
comment on table pawl.cursor is
  'A projection or sink, per generation and shard: its holder, and whether it may move. Its position is in pawl.cursor_position; a transaction that '
  'changes that holds the lock of this row, which leaves no dead row.';
comment on column pawl.cursor.holder is 'The incarnation (pawl.worker.id) that holds it; the lease ends when that row says so.';
comment on column pawl.cursor.is_live is
  'As pawl.projection.live_generation says. In this row too, because its lock is what a handler holds while it writes to tables that a switch renames.';
comment on column pawl.cursor.stopped_at is 'When it came to its state. Null: it runs.';
comment on column pawl.cursor.is_tripped is 'Its breaker paused it, not a person.';
comment on column pawl.cursor.resumed_at is 'When a person last resumed it: keys that were parked before do not count for its breaker.';
comment on column pawl.cursor.hold_at is
  'It does not move beyond this position before hold_until: two generations are about to be compared. At 0 no refresh begins either.';

create table pawl.cursor_position (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  generation integer not null default 1,
  shard integer not null default 0,
  n bigint not null default 0,
  position bigint not null default 0,
  event_id uuid,
  log_generation integer,
  done int8multirange not null default '{}',
  crashes integer not null default 0,
  tried_at bigint,
  attempts integer not null default 0,
  last_error text,
  moved_at timestamptz not null default pawl.now(),
  primary key (tenant, name, generation, shard, n),
  constraint position_cursor foreign key (tenant, name, generation, shard) references pawl.cursor (tenant, name, generation, shard),
  constraint position_known check (position >= 0)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
comment on table pawl.cursor_position is
  'The position of a cursor in the log: one row each. A move names the fence of the cursor and the position that it moves from, in the '
  'transaction of the effect.';
comment on column pawl.cursor_position.n is
  'Grows with every move: the highest entry of the index is the row, however many dead ones an old snapshot keeps below it (pawl.cursor_at).';
comment on column pawl.cursor_position.event_id is 'The id of the event at the position: another id there means that the log is not the one that was read.';
comment on column pawl.cursor_position.done is 'Positions above the position that are finished already, by a sink that works on several keys at once.';
comment on column pawl.cursor_position.crashes is
  'Holders that died since it last moved, the first at whatever it did, the others while they tried the next event alone: that may be what kills them.';
comment on column pawl.cursor_position.tried_at is 'The position from which a holder, after a crash of the one before it, began to try the next event alone.';

-- A cursor with its position, found from the end of the index. A statement that waits for the lock of a cursor does not read the position too: its
-- snapshot is older than the move that it waited for.
create view pawl.cursor_at as
select c.tenant, c.name, c.generation, c.shard, c.shards, c.kind, c.channel, c.is_live, c.fence, c.holder, c.state, c.reason, c.hold_at,
  c.hold_until, c.max_lag, c.resumed_at, c.created_at, p.n, p.position, p.event_id, p.log_generation, p.done, p.crashes, p.tried_at, p.attempts,
  p.last_error, p.moved_at
from pawl.cursor c
cross join lateral (
  select m.n, m.position, m.event_id, m.log_generation, m.done, m.crashes, m.tried_at, m.attempts, m.last_error, m.moved_at
  from pawl.cursor_position m
  where m.tenant = c.tenant
    and m.name = c.name
    and m.generation = c.generation
    and m.shard = c.shard
  order by m.n desc
  limit 1
) p;

create table pawl.parked_key (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  generation integer not null,
  shard integer not null,
  key_tenant text collate "C" not null,
  key text collate "C" not null,
  state text collate "C" not null default 'parked',
  reason text not null,
  error text,
  attempts integer not null,
  tried_at bigint,
  tried_by integer,
  crashes integer not null default 0,
  parked_at timestamptz not null default pawl.now(),
  primary key (tenant, name, generation, shard, key_tenant, key),
  constraint parked_cursor foreign key (tenant, name, generation, shard) references pawl.cursor (tenant, name, generation, shard),
  constraint state_known check (state in ('parked', 'unparking'))
);
create index parked_key_unparking on pawl.parked_key (tenant, name, generation, shard) where state = 'unparking';
comment on column pawl.parked_key.tried_at is
  'The position of the event that tried_by (pawl.worker.id) was the last to begin to replay; crashes counts those who died at it.';
comment on table pawl.parked_key is 'Keys whose event could not be applied. Their later events wait too, in pawl.parked_event; other keys continue.';

create table pawl.parked_event (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  generation integer not null,
  shard integer not null,
  key_tenant text collate "C" not null,
  key text collate "C" not null,
  position bigint not null,
  primary key (tenant, name, generation, shard, key_tenant, key, position),
  constraint parked_event_key foreign key (tenant, name, generation, shard, key_tenant, key)
    references pawl.parked_key (tenant, name, generation, shard, key_tenant, key)
);
create index parked_event_position on pawl.parked_event (position);
comment on table pawl.parked_event is 'The positions of events of parked keys, the failed one first. Retention keeps these events.';

create table pawl.skipped_event (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  position bigint not null,
  event_id uuid not null,
  primary key (tenant, name, position),
  constraint skipped_projection foreign key (tenant, name) references pawl.projection (tenant, name)
);
comment on table pawl.skipped_event is
  'Events that a person has skipped: a later generation, which reads the log from its beginning, passes over them too. Forgotten with the events.';

create table pawl.dirty (
  tenant text collate "C" not null default '',
  id bigint generated always as identity,
  name text collate "C" not null,
  generation integer not null,
  entity text collate "C" not null,
  position bigint not null,
  positions bigint[] not null,
  due_at timestamptz not null default pawl.now(),
  attempts integer not null default 0,
  last_error text,
  reason text,
  parked_at timestamptz,
  primary key (tenant, id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index dirty_due on pawl.dirty (tenant, name, generation, due_at, id);
create index dirty_entity on pawl.dirty (tenant, name, generation, entity);
comment on column pawl.dirty.positions is 'Of the events that changed it in one transaction, the first of which is position: who waits for one of them waits for this row.';
comment on table pawl.dirty is
  'Entities that a state projection must refresh. Only added to, never updated in place by the feeder, so that it does not wait for a slow refresh.';

-- What keeps events from being removed: the place that each cursor has come to, and the one before the first event of each parked key, the
-- lowest first. Those who remove events ask this function.
create function pawl.cursor_floor()
returns table (
  what text, tenant text, name text, generation integer, shard integer, key text, state text, "position" bigint, since timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'cursor', c.tenant, c.name, c.generation, c.shard, null::text, c.state, c.position, c.moved_at
  from pawl.cursor_at c
  where c.state <> 'stale'
  union all
  select 'parked key', k.tenant, k.name, k.generation, k.shard, k.key, k.state, min(e.position) - 1, k.parked_at
  from pawl.parked_key k
  join pawl.parked_event e on e.tenant = k.tenant
    and e.name = k.name
    and e.generation = k.generation
    and e.shard = k.shard
    and e.key_tenant = k.key_tenant
    and e.key = k.key
  group by k.tenant, k.name, k.generation, k.shard, k.key_tenant, k.key, k.state, k.parked_at
  order by 8
  limit 1000
$$;

-- Alerts that the rows of projections, reactions and sinks show: cursors that are latched or stale, generations that a breaker paused, and parked keys and
-- entities. p_tenant null: of all tenants. Of each projection 1,000 parked keys are read.
create function pawl.cursor_alerts(p_tenant text)
returns table (tenant text, code text, subject text, message text, count bigint, first_at timestamptz, last_at timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.tenant, case c.state when 'latched' then 'cursor.latched' else 'cursor.stale' end,
    format('%s generation %s shard %s', c.name, c.generation, c.shard), c.reason, 1::bigint, coalesce(c.stopped_at, c.created_at),
    coalesce(c.stopped_at, c.created_at)
  from pawl.cursor c
  where c.state in ('latched', 'stale')
    and (p_tenant is null or c.tenant = p_tenant)
  union all
  select c.tenant, 'projection.breaker', c.name, max(c.reason), 1::bigint, min(c.stopped_at), max(c.stopped_at)
  from pawl.cursor c
  where c.state = 'paused'
    and c.is_tripped
    and (p_tenant is null or c.tenant = p_tenant)
  group by c.tenant, c.name
  union all
  select p.tenant, 'projection.parked', p.name, (array_agg(w.reason order by w.parked_at desc))[1], count(*), min(w.parked_at), max(w.parked_at)
  from pawl.projection p
  cross join lateral (
    select k.reason, k.parked_at
    from pawl.parked_key k
    where k.tenant = p.tenant
      and k.name = p.name
    union all
    select min(d.reason), min(d.parked_at)
    from pawl.cursor c
    cross join lateral (
      select m.entity, m.reason, m.parked_at
      from pawl.dirty m
      where m.tenant = c.tenant
        and m.name = c.name
        and m.generation = c.generation
        and m.due_at = 'infinity'
      limit 1000
    ) d
    where c.tenant = p.tenant
      and c.name = p.name
      and c.shard = 0
    group by c.generation, d.entity
    limit 1000
  ) w
  where p_tenant is null
    or p.tenant = p_tenant
  group by p.tenant, p.name
$$;
