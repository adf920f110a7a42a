-- What the checker reads, in the torture database only: the ledger of effects, which enforces nothing of what is checked, and a record of
-- every change of a job and of a lease, written by triggers in the transaction of the change.

create schema torture;

-- No key and no index that could refuse a second effect.
create table torture.effect (
  job_id bigint not null,
  fence bigint not null,
  attempt integer not null,
  kind text not null,
  proc text not null,
  xid text not null default pg_current_xact_id()::text,
  at timestamptz not null default clock_timestamp()
);

-- One row per enqueue transaction of the producer's own, written in it.
create table torture.produced (key text not null);

-- Dead jobs whose cause was mended by the operator.
create table torture.mended (job_id bigint not null);

-- When the clock of the database was stepped.
create table torture.step (at timestamptz not null default clock_timestamp(), ms bigint not null);

create table torture.transition (
  n bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid text not null default pg_current_xact_id()::text,
  actor text not null default current_setting('application_name'),
  job_id bigint not null,
  kind text not null,
  from_state text,
  to_state text,
  old_fence bigint,
  new_fence bigint,
  old_holder integer,
  new_holder integer,
  old_attempt integer,
  new_attempt integer,
  old_crashes integer,
  new_crashes integer,
  is_suspect boolean,
  -- Other jobs that the same incarnation held when it claimed a suspect.
  neighbours integer
);

create table torture.lease (
  n bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  pawl_at timestamptz not null default pawl.now(),
  worker integer not null,
  old_until timestamptz,
  new_until timestamptz not null,
  seen_at timestamptz not null,
  was_closed boolean,
  is_closed boolean not null,
  close_reason text
);

create function torture.record_job() returns trigger
language plpgsql as $$
declare
  v_neighbours integer;
begin
  if tg_op = 'UPDATE' and old.state = new.state and old.fence = new.fence and old.attempt = new.attempt
    and old.holder is not distinct from new.holder
  then
    return null;
  end if;
  if tg_op = 'UPDATE' and new.state = 'running' and new.suspect then
    select count(*) into v_neighbours from pawl.job j where j.state = 'running' and j.holder = new.holder and j.id <> new.id;
  end if;
  if tg_op = 'INSERT' then
    insert into torture.transition (job_id, kind, to_state, new_fence, new_holder, new_attempt, new_crashes, is_suspect)
    values (new.id, new.kind, new.state, new.fence, new.holder, new.attempt, new.crashes, new.suspect);
  elsif tg_op = 'DELETE' then
    insert into torture.transition (job_id, kind, from_state, old_fence, old_holder, old_attempt, old_crashes)
    values (old.id, old.kind, old.state, old.fence, old.holder, old.attempt, old.crashes);
  else
    insert into torture.transition (job_id, kind, from_state, to_state, old_fence, new_fence, old_holder, new_holder, old_attempt,
      new_attempt, old_crashes, new_crashes, is_suspect, neighbours)
    values (new.id, new.kind, old.state, new.state, old.fence, new.fence, old.holder, new.holder, old.attempt,
      new.attempt, old.crashes, new.crashes, new.suspect, v_neighbours);
  end if;
  return null;
end
$$;

create trigger torture_record after insert or update or delete on pawl.job
for each row execute function torture.record_job();

create function torture.record_lease() returns trigger
language plpgsql as $$
begin
  -- A worker that has its lock back says so in its row; that is no renewal.
  if tg_op = 'UPDATE' and (new.lease_until, new.seen_at, new.closed_at) is not distinct from (old.lease_until, old.seen_at, old.closed_at) then
    return null;
  end if;
  if tg_op = 'INSERT' then
    insert into torture.lease (worker, new_until, seen_at, is_closed)
    values (new.id, new.lease_until, new.seen_at, new.closed_at is not null);
  else
    insert into torture.lease (worker, old_until, new_until, seen_at, was_closed, is_closed, close_reason)
    values (new.id, old.lease_until, new.lease_until, new.seen_at, old.closed_at is not null, new.closed_at is not null, new.close_reason);
  end if;
  return null;
end
$$;

create trigger torture_record after insert or update on pawl.worker
for each row execute function torture.record_lease();
