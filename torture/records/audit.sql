-- What the checker reads, in the torture database only: a record of every change of a submission and of every write of versions, made by
-- triggers in the transaction of the change. Nothing here enforces what is checked.

create schema torture;

-- Rows with these marks were refused by the database until the operator mended them.
create table torture.mended (mark text not null);

-- Written beside a put in the caller's own transaction.
create table torture.beside (mark text not null);

-- When the clock of the database was stepped.
create table torture.step (at timestamptz not null default clock_timestamp(), ms bigint not null);

create table torture.change (
  n bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid text not null default pg_current_xact_id()::text,
  actor text not null default current_setting('application_name'),
  submission bigint not null,
  scope_id bigint not null,
  from_state text,
  to_state text,
  old_revision integer,
  new_revision integer,
  number bigint,
  baseline bigint not null,
  -- The scope's revision at that moment.
  scope_revision bigint,
  -- Versions of it that are there although it gives its slot back.
  left_over bigint not null
);

create table torture.written (
  n bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid text not null default pg_current_xact_id()::text,
  actor text not null default current_setting('application_name'),
  what text not null,
  submission bigint not null,
  number bigint not null,
  versions bigint not null,
  -- Who holds its job at that moment, by the name of its worker, and the state of that job.
  holder text,
  job_state text
);

create function torture.record_change() returns trigger
language plpgsql as $$
declare
  v_revision bigint;
  v_left bigint := 0;
begin
  if tg_op = 'DELETE' then
    insert into torture.change (submission, scope_id, from_state, old_revision, number, baseline, left_over)
    values (old.id, old.scope_id, old.state, old.revision, old.number, old.baseline, 0);
    return null;
  end if;
  if tg_op = 'UPDATE' and (old.state, old.revision) = (new.state, new.revision) then
    return null;
  end if;
  select s.revision into v_revision from pawl.record_scope s where s.tenant = new.tenant and s.id = new.scope_id;
  if new.state in ('failed', 'superseded') then
    select count(*) into v_left from pawl.record_version v where v.tenant = new.tenant and v.submission = new.id;
  end if;
  insert into torture.change (submission, scope_id, from_state, to_state, old_revision, new_revision, number, baseline, scope_revision, left_over)
  values (new.id, new.scope_id, case tg_op when 'UPDATE' then old.state end, new.state, case tg_op when 'UPDATE' then old.revision end, new.revision,
    new.number, new.baseline, v_revision, v_left);
  return null;
end
$$;

create trigger torture_record after insert or update or delete on pawl.submission
for each row execute function torture.record_change();

create function torture.record_written() returns trigger
language plpgsql as $$
begin
  insert into torture.written (what, submission, number, versions, holder, job_state)
  select lower(tg_op), t.submission, t.number, t.versions, p.name, j.state
  from (select c.tenant, c.submission, c.number, count(*) as versions from touched c group by c.tenant, c.submission, c.number) t
  left join pawl.submission u on u.tenant = t.tenant and u.id = t.submission
  left join pawl.job j on j.tenant = u.tenant and j.id = u.job_id
  left join pawl.worker_process p on p.id = j.holder;
  return null;
end
$$;

create trigger torture_written after insert on pawl.record_version
referencing new table as touched for each statement execute function torture.record_written();
create trigger torture_purged after delete on pawl.record_version
referencing old table as touched for each statement execute function torture.record_written();

-- A fault of the data: the database refuses the row until somebody mends the cause. '!' refuses for good, '?' as if it were a deadlock.
create function torture.refuse() returns trigger
language plpgsql as $$
begin
  if exists (select from torture.mended m where m.mark = new.data ->> 'mark') then
    return new;
  end if;
  if new.data ->> 'mark' like '%!' then
    raise exception 'not mended yet' using errcode = '22003';
  end if;
  raise exception 'not mended yet' using errcode = '40P01';
end
$$;

create trigger torture_refuse before insert on pawl.record_version
for each row when (new.data ->> 'mark' like '%!' or new.data ->> 'mark' like '%?') execute function torture.refuse();
