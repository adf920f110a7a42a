-- Records: scopes with one committed number each, submissions and their staged rows, append-only versions, erasures.

create sequence pawl.record_scope_id as bigint;
create sequence pawl.submission_id as bigint;
-- Thousands are taken at once, and an unused number is no loss.
create sequence pawl.record_id as bigint cache 100;

create table pawl.record_set (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  schema_version integer not null,
  definition jsonb not null,
  kept_at timestamptz not null default pawl.now(),
  primary key (tenant, name, schema_version)
);
comment on table pawl.record_set is
  'How applications declared their record sets: scope, attributes, and the key and JSON Schema of each type, by the version of the schema. '
  'For readers that do not run the application''s code; nothing is decided by it.';

create table pawl.record_scope (
  tenant text collate "C" not null default '',
  id bigint not null default nextval('pawl.record_scope_id'),
  record_set text collate "C" not null,
  scope text collate "C" not null,
  revision bigint not null default 1,
  committed bigint not null default 0,
  next_number bigint not null default 1,
  live bigint not null default 0,
  attributes jsonb,
  created_at timestamptz not null default pawl.now(),
  primary key (tenant, id),
  constraint record_scope_name unique (tenant, record_set, scope),
  constraint name_length check (length(record_set) between 1 and 200 and length(scope) between 2 and 500),
  constraint numbers_in_order check (committed >= 0 and committed < next_number and live >= 0)
) with (fillfactor = 50);
comment on table pawl.record_scope is
  'What a submission replaces or adds to, such as one registration of one organisation. A reader takes of each record the latest version '
  'whose number is at most committed: moving that number is the commit of a whole submission.';
comment on column pawl.record_scope.revision is 'Grows with every commit and erasure. A submission whose baseline is another one is superseded.';
comment on column pawl.record_scope.live is 'Records whose committed version is no tombstone. Kept for speed; records.audit() counts them again.';

create table pawl.submission (
  tenant text collate "C" not null default '',
  id bigint not null default nextval('pawl.submission_id'),
  record_set text collate "C" not null,
  scope_id bigint not null,
  origin text collate "C" not null,
  state text collate "C" not null,
  revision integer not null default 1,
  fence bigint not null default 0,
  baseline bigint not null,
  baseline_number bigint not null,
  baseline_live bigint not null,
  received_at_revision bigint,
  types text[],
  attributes jsonb,
  number bigint,
  schema_version integer not null,
  missing_policy text collate "C" not null,
  format text collate "C",
  name text,
  submitted_by text,
  rebased_from bigint,
  lines bigint not null default 0,
  last_line bigint not null default 0,
  bytes bigint not null default 0,
  digest text,
  ignored_sheets text[] not null default '{}',
  is_staged boolean not null default false,
  created bigint not null default 0,
  updated bigint not null default 0,
  unchanged bigint not null default 0,
  missing bigint not null default 0,
  deleted bigint not null default 0,
  invalid_created bigint not null default 0,
  invalid_updated bigint not null default 0,
  invalid_unkeyed bigint not null default 0,
  errors bigint not null default 0,
  applied_line bigint not null default 0,
  applied_created bigint not null default 0,
  applied_updated bigint not null default 0,
  applied_deleted bigint not null default 0,
  job_id bigint,
  failures integer not null default 0,
  failure_class text collate "C",
  error text,
  created_at timestamptz not null default pawl.now(),
  submitting_at timestamptz,
  ended_at timestamptz,
  expires_at timestamptz,
  primary key (tenant, id),
  constraint submission_scope foreign key (tenant, scope_id) references pawl.record_scope (tenant, id),
  constraint state_known check (state in ('uploading', 'validating', 'validated', 'invalid', 'upload-failed', 'submitting', 'submitted', 'superseded', 'failed')),
  constraint origin_known check (origin in ('upload', 'rebase', 'put', 'append')),
  constraint policy_known check (missing_policy in ('reject', 'keep', 'tombstone')),
  constraint class_known check (failure_class in ('permanent', 'transient', 'unknown', 'cancelled')),
  -- Only what is submitted stays forever, and only a job ends what is submitting: a state and its expiry change together.
  constraint expiry_by_state check ((state in ('submitting', 'submitted')) = (expires_at is null)),
  constraint submitting_has_job check (state <> 'submitting' or (job_id is not null and number is not null and submitting_at is not null)),
  constraint failed_has_reason check (state not in ('failed', 'upload-failed') or error is not null),
  constraint failed_is_purged check (state <> 'failed' or (applied_line = 0 and applied_created = 0 and applied_updated = 0 and applied_deleted = 0)),
  constraint validated_is_valid check (state not in ('validated', 'submitting', 'submitted') or errors = 0),
  -- The proof at the commit: every staged row was created, updated or unchanged, and what that asked for was written.
  constraint counts_proved check (
    state <> 'submitted'
    or (number is not null and ended_at is not null and lines = created + updated + unchanged
      and applied_created = created and applied_updated = updated and applied_deleted = deleted)
  )
) with (fillfactor = 70);
create unique index submission_slot on pawl.submission (tenant, scope_id) where state = 'submitting';
create unique index submission_number on pawl.submission (tenant, scope_id, number) where state = 'submitted';
create index submission_of_scope on pawl.submission (tenant, scope_id, id);
create index submission_of_set on pawl.submission (tenant, record_set, id);
create index submission_open_of_scope on pawl.submission (tenant, scope_id, state, id) where state <> 'submitted';
create index submission_open_of_set on pawl.submission (tenant, record_set, state, id) where state <> 'submitted';
create index submission_expiry on pawl.submission (expires_at) where expires_at is not null;
create index submission_uncleared on pawl.submission (tenant, id) where state = 'submitted' and is_staged;
create index submission_failed on pawl.submission (tenant, record_set) where state = 'failed' and failure_class <> 'cancelled';
comment on table pawl.submission is
  'One upload, put or append, from its first row to its end. At most one is submitting per scope; what it writes is invisible until '
  'record_scope.committed reaches its number.';
comment on column pawl.submission.fence is 'Of the upload that may stage rows; an upload that was restarted elsewhere finds another.';
comment on column pawl.submission.received_at_revision is
  'The scope''s revision when its rows were received: the baseline of the upload, also in what is rebased from it. What was erased after it is not in it.';
comment on column pawl.submission.types is 'The types that the set had, of which records may be missing.';
comment on column pawl.submission.attributes is 'Of the scope. Checked when it is submitted and set when it is committed.';
comment on column pawl.submission.is_staged is 'It may have staged rows. The sweep removes them once it is submitted, or with it when it expires.';
comment on column pawl.submission.lines is 'Rows staged, valid or not, without the tombstones that Pawl adds itself.';
comment on column pawl.submission.applied_line is 'Everything up to this line is written as versions. Committed with the chunk that wrote it.';

-- The one list of the columns that the library reads of a submission: what callers see, and under 'internal' what only the code needs.
create view pawl.submission_info as
select u.tenant, u.id, json_build_object(
    'id', u.id::text,
    'set', u.record_set,
    'origin', u.origin,
    'state', u.state,
    'revision', u.revision,
    'baseline', u.baseline,
    'number', u.number::text,
    'format', u.format,
    'name', u.name,
    'by', u.submitted_by,
    'rebasedFrom', u.rebased_from::text,
    'ignoredSheets', u.ignored_sheets,
    'counts', json_build_object(
      'rows', u.lines,
      'created', u.created,
      'updated', u.updated,
      'unchanged', u.unchanged,
      'missing', u.missing,
      'deleted', u.deleted,
      'invalid', json_build_object('created', u.invalid_created, 'updated', u.invalid_updated, 'unkeyed', u.invalid_unkeyed),
      'errors', u.errors
    ),
    'progress', json_build_object(
      'bytes', u.bytes,
      'rows', u.lines,
      'applied', u.applied_created + u.applied_updated + u.applied_deleted,
      'of', u.created + u.updated + u.deleted
    ),
    'jobId', u.job_id::text,
    'failureClass', u.failure_class,
    'error', u.error,
    'createdAt', u.created_at,
    'submittingAt', u.submitting_at,
    'endedAt', u.ended_at,
    'expiresAt', u.expires_at,
    'internal', json_build_object(
      'tenant', u.tenant,
      'scopeId', u.scope_id::text,
      'scope', s.scope,
      'scopeRevision', s.revision,
      'fence', u.fence::text,
      'baselineNumber', u.baseline_number::text,
      'receivedAt', u.received_at_revision::text,
      'types', u.types,
      'attributes', u.attributes::text,
      'schemaVersion', u.schema_version,
      'appliedLine', u.applied_line::text,
      'failures', u.failures,
      'isExpired', coalesce(u.expires_at < pawl.now(), false)
    )
  ) as info
from pawl.submission u
join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id;
comment on view pawl.submission_info is 'Submissions as records.get() gives them, with the revision of their scope.';

create table pawl.submission_row (
  tenant text collate "C" not null default '',
  submission bigint not null,
  line bigint not null,
  record_id bigint not null default nextval('pawl.record_id'),
  kind text collate "C" not null,
  is_new boolean not null default true,
  type text collate "C" not null,
  key text collate "C" not null,
  hash uuid,
  classification text,
  data json,
  changed text[],
  primary key (tenant, submission, line),
  constraint kind_known check (kind in ('created', 'updated', 'unchanged', 'deleted', 'invalid-created', 'invalid-updated', 'unkeyed'))
);
comment on table pawl.submission_row is
  'Staged rows. Data is kept only for rows that create or update: an unchanged one is as its record was at the baseline. Removed after '
  'the commit, or when the submission expires.';

comment on column pawl.submission_row.kind is
  'What the row does to its record; deleted: a tombstone that Pawl adds. An invalid row would create or update; an unkeyed one is invalid and names no record.';

create table pawl.submission_error (
  tenant text collate "C" not null default '',
  submission bigint not null,
  ordinal bigint not null,
  line bigint not null,
  code text not null,
  field text,
  value text,
  reason text not null,
  primary key (tenant, submission, ordinal)
);
comment on table pawl.submission_error is 'Why rows are not valid, the first 1,000 of a submission; submission.errors has the full count.';

create table pawl.record (
  tenant text collate "C" not null default '',
  scope_id bigint not null,
  type text collate "C" not null,
  key text collate "C" not null,
  id bigint not null,
  primary key (tenant, scope_id, type, key)
);
comment on table pawl.record is 'A record is its key. Never updated; invisible until a version of it is committed.';

create table pawl.record_version (
  tenant text collate "C" not null default '',
  record_id bigint not null,
  number bigint not null,
  submission bigint not null,
  schema_version integer not null,
  is_erased boolean not null default false,
  status text collate "C" not null,
  hash uuid,
  classification text,
  data json,
  changed text[],
  primary key (tenant, record_id, number),
  constraint status_known check (status in ('CREATED', 'UPDATED', 'DELETED')),
  constraint data_by_status check ((data is null) = (status = 'DELETED' or is_erased) and (data is null) = (hash is null))
);
comment on table pawl.record_version is
  'Append-only: every version has the whole data. Numbers in it are strings of their decimal value. Only an erasure takes data away.';
comment on column pawl.record_version.data is
  'The canonical text that the hash is of. json and not jsonb, which would take every row apart twice: once when it is staged and once '
  'when it is read. Cast it to jsonb to query it.';

-- The version of a record that is current at a number, or with p_limit also those before it, newest first. The planner makes it part of the
-- statement that calls it, and columns that the statement does not read cost nothing.
create function pawl.version_at(p_tenant text, p_record_id bigint, p_number bigint, p_limit integer default 1) returns setof pawl.record_version
language sql stable rows 1
begin atomic
  select w.tenant, w.record_id, w.number, w.submission, w.schema_version, w.is_erased, w.status, w.hash, w.classification, w.data, w.changed
  from pawl.record_version w
  where w.tenant = p_tenant
    and w.record_id = p_record_id
    and w.number <= p_number
  order by w.number desc
  limit p_limit;
end;

create table pawl.record_erasure (
  tenant text collate "C" not null default '',
  id bigint generated always as identity,
  scope_id bigint not null,
  record_id bigint,
  revision bigint not null,
  type text collate "C" not null,
  key text collate "C" not null,
  versions integer not null,
  reason text not null,
  erased_by text,
  at timestamptz not null default pawl.now(),
  primary key (tenant, id)
);
create index record_erasure_of_scope on pawl.record_erasure (tenant, scope_id, revision);
comment on table pawl.record_erasure is 'Whose data was taken away, when, by whom and why. The versions and their numbers stay.';
comment on column pawl.record_erasure.record_id is 'null: there was no such record, it was only staged.';
comment on column pawl.record_erasure.revision is 'The scope''s revision from then on. Rows that were received before it and name the record are not submitted.';

-- Everything that needs a person now, of one tenant or, with null, of all.
create function pawl.open_alerts(p_tenant text)
returns table (tenant text, code text, subject text, message text, count bigint, first_at timestamptz, last_at timestamptz)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- A message ends with its error: what follows the first line is the stack.
  select a.tenant, a.code, a.subject, split_part(a.message, E'\n', 1), a.count, a.first_at, a.last_at
  from pawl.alert a
  where a.resolved_at is null
    and (a.until is null or a.until > pawl.now())
    and (p_tenant is null or a.tenant = p_tenant)
  union all
  select j.tenant, j.code, j.subject, split_part(j.message, E'\n', 1), j.count, j.first_at, j.last_at
  from pawl.job_alerts(p_tenant) j
  union all
  select c.tenant, c.code, c.subject, split_part(c.message, E'\n', 1), c.count, c.first_at, c.last_at
  from pawl.cursor_alerts(p_tenant) c
$$;
