-- What the checkers of outbox and projections read, in the torture database only: what writers committed, what handlers did, and every change
-- of a cursor and of the sequencer. Nothing here has a key or a constraint that could refuse what is checked.

create schema torture;

-- When the clock of the database was stepped.
create table torture.step (at timestamptz not null default clock_timestamp(), ms bigint not null);

-- How often each key was written. Its row is locked until the writer's transaction ends, so n is the true order of the key's events.
create table torture.counter (key text primary key, n bigint not null);
insert into torture.counter select k || i, 0 from (values ('k', 12), ('reader', 4), ('stranger', 2)) v(k, n), generate_series(1, n) i;

-- One row per event, written in the transaction that appended it: what committed.
create table torture.wrote (
  batch text not null,
  i integer not null,
  key text not null,
  n bigint not null,
  xid xid8 not null default pg_current_xact_id()
);

-- A table whose trigger appends, as an application that cannot be changed would do it.
create table torture.thing (batch text not null, i integer not null, key text not null, n bigint not null, data jsonb not null);
create function torture.append_thing() returns trigger
language plpgsql as $$
begin
  perform pawl.append('Written', 'thing', new.key, new.data);
  return null;
end
$$;
create trigger torture_append after insert on torture.thing for each row execute function torture.append_thing();

-- What handlers applied in their transactions. The numbers are drawn while the cursor's row is locked: their order is the order of application.
create table torture.applied (
  id bigint generated always as identity,
  name text not null,
  generation integer not null,
  position bigint not null,
  event_id uuid not null,
  key text not null,
  n bigint,
  proc text not null,
  xid xid8 not null default pg_current_xact_id()
);
create index applied_name on torture.applied (name, generation);

-- The tables of the projection that is rebuilt and switched.
create table torture.balance (key text primary key, events bigint not null, total bigint not null);
create table torture.journal (position bigint not null, key text not null);

-- What refreshes of the state projection wrote: the last of each key, and all of them.
create table torture.copied (key text primary key, n bigint not null);
create table torture.refreshed (id bigint generated always as identity, key text not null, n bigint not null);

-- Events whose cause of failure was mended.
create table torture.mended (position bigint not null);

create table torture.tick (
  n bigint generated always as identity,
  position bigint not null,
  generation integer not null
);
create function torture.record_tick() returns trigger
language plpgsql as $$
begin
  insert into torture.tick (position, generation) values (new.position, new.generation);
  return null;
end
$$;
create trigger torture_record after update on pawl.sequencer for each row execute function torture.record_tick();

create table torture.cursor_change (
  id bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  actor text not null default current_setting('application_name'),
  name text not null,
  generation integer not null,
  shard integer not null,
  old_position bigint not null,
  new_position bigint not null,
  done text not null,
  parked text not null default '',
  old_fence bigint not null,
  new_fence bigint not null,
  old_holder integer,
  new_holder integer
);
create function torture.record_cursor() returns trigger
language plpgsql as $$
begin
  insert into torture.cursor_change (name, generation, shard, old_position, new_position, done, parked, old_fence, new_fence, old_holder, new_holder)
  select c.name, c.generation, c.shard, c.position, c.position, c.done::text, coalesce((
      select string_agg(e.position::text, ' ')
      from pawl.parked_event e
      where (e.tenant, e.name, e.generation, e.shard) = (new.tenant, new.name, new.generation, new.shard)
    ), ''), old.fence, new.fence, old.holder, new.holder
  from pawl.cursor_at c
  where (c.tenant, c.name, c.generation, c.shard) = (new.tenant, new.name, new.generation, new.shard);
  return null;
end
$$;
create trigger torture_record after update on pawl.cursor for each row
when ((old.fence, old.holder) is distinct from (new.fence, new.holder))
execute function torture.record_cursor();
create function torture.record_position() returns trigger
language plpgsql as $$
begin
  insert into torture.cursor_change (name, generation, shard, old_position, new_position, done, old_fence, new_fence, old_holder, new_holder)
  select c.name, c.generation, c.shard, old.position, new.position, new.done::text, c.fence, c.fence, c.holder, c.holder
  from pawl.cursor c
  where (c.tenant, c.name, c.generation, c.shard) = (new.tenant, new.name, new.generation, new.shard);
  return null;
end
$$;
create trigger torture_record after update on pawl.cursor_position for each row
when ((old.position, old.done) is distinct from (new.position, new.done))
execute function torture.record_position();

create table torture.parking (at timestamptz not null default clock_timestamp(), name text not null, generation integer not null, key text not null);
create function torture.record_parking() returns trigger
language plpgsql as $$
begin
  insert into torture.parking (name, generation, key) values (new.name, new.generation, new.key);
  return null;
end
$$;
create trigger torture_record after insert on pawl.parked_key for each row execute function torture.record_parking();

-- Every position with its event.
create view torture.log as
select p.first_position + u.n - 1 as position, p.generation, u.xid, u.seq, e.id, e.aggregateid as key, e.type, e.payload as data, e.headers,
  pawl.event_bucket(e.tenant, e.aggregateid) as bucket
from pawl.log_page p
cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
left join pawl.event e on e.xid = u.xid and e.seq = u.seq
where p.tenant = '';
