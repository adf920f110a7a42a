-- name: upload-begin
-- A new submission, compared with the scope as it is committed in this very statement's snapshot.
-- Locks: the scope row, FOR KEY SHARE by its foreign key.
-- Plan: record_scope_pkey.
-- One row: its id and its baseline.
insert into pawl.submission (tenant, record_set, scope_id, origin, state, fence, baseline, baseline_number, baseline_live, received_at_revision, types,
  attributes, schema_version, missing_policy, format, name, submitted_by, rebased_from, is_staged, expires_at)
select s.tenant, s.record_set, s.id, :origin::text, 'uploading', pawl.next_fence(), s.revision, s.committed, s.live, coalesce(:received_at::bigint, s.revision),
  :types::text[], :attributes::jsonb, :schema_version::integer, :missing_policy::text, :format::text, left(:name::text, 500), left(:submitted_by::text, 500), :rebased_from::bigint, true,
  pawl.now() + :keep_ms::bigint * interval '1 millisecond'
from pawl.record_scope s
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
returning id::text as id, fence::text as fence, baseline::text as baseline, baseline_number::text as committed, baseline_live::text as live,
  types::text as types

-- name: upload-restart
-- Starts an upload over: a new fence, which refuses rows of the upload before, a new baseline, and the rules of the process that reads it now.
-- Locks: the submission row.
-- Plan: record_scope_pkey; its own submission by the scope or the primary key.
-- No row: it is not an upload that stopped.
update pawl.submission u
set state = 'uploading',
  revision = u.revision + 1,
  fence = pawl.next_fence(),
  baseline = s.revision,
  baseline_number = s.committed,
  baseline_live = s.live,
  received_at_revision = s.revision,
  types = :types::text[],
  attributes = :attributes::jsonb,
  schema_version = :schema_version::integer,
  missing_policy = :missing_policy::text,
  format = :format::text,
  name = left(:name::text, 500),
  submitted_by = left(:submitted_by::text, 500),
  lines = 0,
  last_line = 0,
  bytes = 0,
  errors = 0,
  digest = null,
  ignored_sheets = '{}',
  failure_class = null,
  error = null,
  ended_at = null,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
from pawl.record_scope s
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.scope_id = :scope_id::bigint
  and u.origin = 'upload'
  and u.state in ('uploading', 'validating', 'upload-failed')
  and u.expires_at > pawl.now()
  and s.tenant = u.tenant
  and s.id = u.scope_id
returning u.id::text as id, u.fence::text as fence, u.baseline::text as baseline, u.baseline_number::text as committed, u.baseline_live::text as live,
  u.types::text as types

-- name: upload-staged
-- The last row is staged: what follows is counting.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it expired.
update pawl.submission u
set state = 'validating',
  revision = u.revision + 1,
  bytes = :bytes::bigint,
  digest = :digest::text,
  ignored_sheets = :ignored::text[],
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'uploading'
  and u.expires_at > pawl.now()
returning u.revision

-- name: stage-progress
-- Counts a batch of staged rows, in the transaction that staged it, and gives the upload more time.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: this upload was started over elsewhere, or its submission expired: its fence is not the current one.
update pawl.submission u
set lines = u.lines + :lines::bigint,
  last_line = greatest(u.last_line, :last_line::bigint),
  bytes = :bytes::bigint,
  errors = u.errors + :errors::bigint,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'uploading'
  and u.expires_at > pawl.now()
returning u.lines::text as lines

-- name: upload-end
-- Ends an upload before its validation: invalid (the file is malformed) or upload-failed (the process or the stream failed).
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it has ended or expired.
update pawl.submission u
set state = :state::text,
  revision = u.revision + 1,
  error = left(:error::text, 2000),
  errors = u.errors + :errors::bigint,
  bytes = :bytes::bigint,
  ignored_sheets = :ignored::text[],
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state in ('uploading', 'validating')
  and u.expires_at > pawl.now()
returning u.revision

-- name: validated
-- The counts are known: the submission is validated, or invalid.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: its fence is not the current one, or it expired.
update pawl.submission u
set state = :state::text,
  revision = u.revision + 1,
  created = :created::bigint,
  updated = :updated::bigint,
  unchanged = :unchanged::bigint,
  missing = :missing::bigint,
  deleted = :deleted::bigint,
  invalid_created = :invalid_created::bigint,
  invalid_updated = :invalid_updated::bigint,
  invalid_unkeyed = :invalid_unkeyed::bigint,
  errors = u.errors + :errors::bigint,
  last_line = :last_line::bigint,
  error = left(:error::text, 2000),
  ended_at = case when :state::text = 'invalid' then pawl.now() end,
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.fence = :fence::bigint
  and u.state = 'validating'
  and u.expires_at > pawl.now()
returning u.revision

-- name: submit
-- Takes the slot of its scope for a validated submission, or a failed one that is resumed, with the scope's next number. The caller holds the
-- scope's lock, has seen that the slot is free and the baseline current; the unique index would refuse another caller.
-- Locks: the submission row, the scope row.
-- Plan: submission_pkey, record_scope_pkey.
-- No row: another state, another revision, or it expired.
with taken as (
  update pawl.submission u
  set state = 'submitting',
    revision = u.revision + 1,
    number = s.next_number,
    submitting_at = pawl.now(),
    ended_at = null,
    expires_at = null,
    job_id = :job_id::bigint,
    failures = 0,
    failure_class = null,
    error = null,
    applied_line = 0,
    applied_created = 0,
    applied_updated = 0,
    applied_deleted = 0
  from pawl.record_scope s
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = :state::text
    and (:revision::integer is null or u.revision = :revision::integer)
    and u.expires_at > pawl.now()
    and s.tenant = u.tenant
    and s.id = u.scope_id
    and s.revision = u.baseline
  returning u.tenant, u.scope_id, u.number, u.revision
)
update pawl.record_scope s
set next_number = s.next_number + 1
from taken t
where s.tenant = t.tenant
  and s.id = t.scope_id
returning t.number::text as number, t.revision

-- name: submit-unchanged
-- Takes the slot for a submission that changes nothing and commits it at once, under the scope's next number: there is nothing to apply. The
-- caller holds the scope's lock, has seen that the slot is free and the baseline current.
-- Locks: the submission row, the scope row.
-- Plan: submission_pkey, record_scope_pkey.
-- No row: another state, another revision, it expired, or it does change something.
with ended as (
  update pawl.submission u
  set state = 'submitted',
    revision = u.revision + 1,
    number = s.next_number,
    submitting_at = pawl.now(),
    ended_at = pawl.now(),
    expires_at = null,
    job_id = null,
    failures = 0,
    failure_class = null,
    error = null
  from pawl.record_scope s
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'validated'
    and u.revision = :revision::integer
    and u.created + u.updated + u.deleted = 0
    and u.expires_at > pawl.now()
    and s.tenant = u.tenant
    and s.id = u.scope_id
    and s.revision = u.baseline
  returning u.tenant, u.scope_id, u.number, u.revision, u.unchanged, u.attributes
)
update pawl.record_scope s
set committed = e.number,
  next_number = e.number + 1,
  revision = s.revision + 1,
  attributes = coalesce(s.attributes || e.attributes, s.attributes, e.attributes)
from ended e
where s.tenant = e.tenant
  and s.id = e.scope_id
returning e.number::text as number, e.revision, e.unchanged::integer as unchanged

-- name: append
-- Writes a few versions and commits them at once, as a submission of its own: a put, or a delta that the caller computed. The caller holds the
-- scope's lock and has seen that its slot is free.
-- Locks: the scope row.
-- Plan: record_scope_pkey; inserts into submission, record and record_version.
-- One row: the submission, and its number.
with given as materialized (
  select g.record_id, g.kind, g.is_new, g.type, g.key, g.hash, g.classification, g.data, g.changed
  from json_to_recordset(:rows::json) as g(record_id bigint, kind text, is_new boolean, type text, key text, hash uuid, classification text, data json,
    changed text[])
),
counted as materialized (
  select count(*) filter (where g.kind = 'created') as created, count(*) filter (where g.kind = 'updated') as updated,
    count(*) filter (where g.kind = 'deleted') as deleted
  from given g
),
ended as (
  insert into pawl.submission (tenant, record_set, scope_id, origin, state, baseline, baseline_number, baseline_live, number, schema_version,
    missing_policy, submitted_by, lines, last_line, created, updated, unchanged, deleted, applied_line, applied_created, applied_updated, applied_deleted,
    submitting_at, ended_at)
  select s.tenant, s.record_set, s.id, :origin::text, 'submitted', s.revision, s.committed, s.live, s.next_number, :schema_version::integer,
    'keep', left(:submitted_by::text, 500), c.created + c.updated + :unchanged::bigint, 0, c.created, c.updated, :unchanged::bigint, c.deleted, 0,
    c.created, c.updated, c.deleted, pawl.now(), pawl.now()
  from pawl.record_scope s, counted c
  where s.tenant = :tenant::text
    and s.id = :scope_id::bigint
  returning id, number, created, deleted
),
records as (
  insert into pawl.record (tenant, scope_id, type, key, id)
  select :tenant::text, :scope_id::bigint, g.type, g.key, g.record_id
  from given g
  where g.is_new
    and g.kind = 'created'
),
versions as (
  insert into pawl.record_version (tenant, record_id, number, submission, schema_version, status, hash, classification, data, changed)
  select :tenant::text, g.record_id, e.number, e.id, :schema_version::integer, upper(g.kind), g.hash, g.classification, g.data, g.changed
  from given g, ended e
)
update pawl.record_scope s
set committed = e.number,
  next_number = e.number + 1,
  revision = s.revision + 1,
  live = s.live + e.created - e.deleted,
  attributes = coalesce(s.attributes || :attributes::jsonb, s.attributes, :attributes::jsonb)
from ended e
where s.tenant = :tenant::text
  and s.id = :scope_id::bigint
returning e.id::text as submission, e.number::text as number

-- name: commit
-- The commit of a submission: the scope's committed number becomes its own, and from then on every reader sees all of it. The counts are
-- proved by a constraint of the submission's row. The caller holds its job by the fence, and the scope by its lock.
-- Locks: the scope row, the submission row.
-- Plan: record_scope_pkey; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number.
with ended as (
  update pawl.submission u
  set state = 'submitted',
    revision = u.revision + 1,
    failures = 0,
    failure_class = null,
    error = null,
    ended_at = pawl.now()
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'submitting'
    and u.number = :number::bigint
  returning u.tenant, u.scope_id, u.number, u.created, u.deleted, u.attributes
)
update pawl.record_scope s
set committed = e.number,
  revision = s.revision + 1,
  live = s.live + e.created - e.deleted,
  attributes = coalesce(s.attributes || e.attributes, s.attributes, e.attributes)
from ended e
where s.tenant = e.tenant
  and s.id = e.scope_id
  and s.committed < e.number
returning s.revision::text as revision

-- name: supersede
-- The scope has moved since this was compared with it: what its preview says is no longer what would be applied.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: another state or another revision.
update pawl.submission u
set state = 'superseded',
  revision = u.revision + 1,
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond',
  error = left(:error::text, 2000)
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = :state::text
  and (:revision::integer is null or u.revision = :revision::integer)
returning u.revision

-- name: note-failure
-- Stores the error of a failed attempt of the apply, for `why`; the submission stays submitting.
-- Locks: the submission row.
-- Plan: its own submission by the slot or the primary key.
-- No row: it is not submitting under this number.
update pawl.submission u
set failures = u.failures + 1,
  failure_class = :failure_class::text,
  error = left(:error::text, 2000)
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
returning u.failures

-- name: cancel
-- Ends a submission that a person cancels, and notes it in the audit. An upload becomes upload-failed, a validated one failed. One that is
-- submitting keeps its slot until what it wrote is purged; its job is cancelled in the same transaction. The new fence refuses rows in progress.
-- Locks: the submission row.
-- Plan: submission_pkey.
-- No row: it is at another revision, or expired.
update pawl.submission u
set state = case u.state when 'submitting' then 'submitting' when 'validated' then 'failed' else 'upload-failed' end,
  revision = u.revision + case when u.state = 'submitting' then 0 else 1 end,
  fence = pawl.next_fence(),
  failure_class = 'cancelled',
  error = left(:error::text, 2000),
  ended_at = case when u.state <> 'submitting' then pawl.now() end,
  expires_at = case when u.state <> 'submitting' then pawl.now() + :keep_ms::bigint * interval '1 millisecond' end
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.revision = :revision::integer
  and u.state in ('uploading', 'validating', 'validated', 'submitting')
  and coalesce(u.expires_at, 'infinity') > pawl.now()
returning u.state, pawl.write_audit(u.tenant, :by::text, 'records.cancel', 'submission ' || u.id, :reason::text)::text as noted

-- name: cancel-job
-- Cancels the job of a submission.
-- Locks: the job row; it waits for the chunk that its handler is writing.
-- Plan: pawl.cancel_jobs.
-- No row: the job has ended.
select j::text as id
from pawl.cancel_jobs(:tenant::text, array[:job_id::bigint], :reason::text) j

-- name: submission-fail
-- A submission that is given up, after everything it wrote was purged. Its slot is free with this. A cancelled one needs no alert.
-- Locks: the submission row.
-- Plan: its own submission by the slot or the primary key.
-- No row: it is not submitting under this number, or something is not purged.
update pawl.submission u
set state = 'failed',
  revision = u.revision + 1,
  failure_class = :failure_class::text,
  error = left(:error::text, 2000),
  ended_at = pawl.now(),
  expires_at = pawl.now() + :keep_ms::bigint * interval '1 millisecond'
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = 0
  and u.applied_created + u.applied_updated + u.applied_deleted = 0
returning u.revision,
  case
    when :failure_class::text <> 'cancelled' then pawl.raise_alert(u.tenant, 'submission.failed', u.record_set,
      format('submission %s of %s failed (%s): %s', u.id, u.record_set, :failure_class::text, left(:error::text, 1000)))::text
  end as alerted

-- name: submission-read
-- A submission.
-- Locks: none.
-- Plan: submission_pkey, record_scope_pkey.
-- No row: there is none for this tenant, or it expired.
select v.info::text as info
from pawl.submission_info v
where v.tenant = :tenant::text
  and v.id = :id::bigint

-- name: submission-lock
-- Holds a submission while its next state is decided.
-- Locks: the submission row, FOR NO KEY UPDATE; take the scope's lock first.
-- Plan: submission_pkey.
-- No row: there is none for this tenant, or it expired and was removed.
select u.state, u.revision, u.baseline::text as baseline, coalesce(u.expires_at <= pawl.now(), false) as is_expired
from pawl.submission u
where u.tenant = :tenant::text
  and u.id = :id::bigint
for no key update

-- name: submission-list
-- A page of the submissions of a scope, newest first.
-- Locks: none.
-- Plan: submission_of_scope, submission_open_of_scope, submission_pkey, record_scope_pkey.
-- Rows: the next ones before :before.
select v.info::text as info
from pawl.submission_info v
where v.tenant = :tenant::text
  -- Only one of the two is read: a scan of all submissions for a rare state would read every put.
  and v.id = any (
    array(
      (
        select a.id
        from pawl.submission a
        where a.tenant = :tenant::text
          and a.scope_id = :scope_id::bigint
          and a.id < :before::bigint
          and coalesce(:state::text, 'submitted') = 'submitted'
          and (:state::text is null or a.state = 'submitted')
        order by a.id desc
        limit :limit::integer
      )
      union all
      (
        select o.id
        from pawl.submission o
        where o.tenant = :tenant::text
          and o.scope_id = :scope_id::bigint
          and o.id < :before::bigint
          and o.state = :state::text
          and o.state <> 'submitted'
        order by o.id desc
        limit :limit::integer
      )
    )
  )
order by v.id desc

-- name: submission-list-set
-- A page of the submissions of a record set, newest first.
-- Locks: none.
-- Plan: submission_of_set, submission_open_of_set, submission_pkey, record_scope_pkey.
-- Rows: the next ones before :before.
select v.info::text as info
from pawl.submission_info v
where v.tenant = :tenant::text
  -- Only one of the two is read: a scan of all submissions for a rare state would read every put.
  and v.id = any (
    array(
      (
        select a.id
        from pawl.submission a
        where a.tenant = :tenant::text
          and a.record_set = :record_set::text
          and a.id < :before::bigint
          and coalesce(:state::text, 'submitted') = 'submitted'
          and (:state::text is null or a.state = 'submitted')
        order by a.id desc
        limit :limit::integer
      )
      union all
      (
        select o.id
        from pawl.submission o
        where o.tenant = :tenant::text
          and o.record_set = :record_set::text
          and o.id < :before::bigint
          and o.state = :state::text
          and o.state <> 'submitted'
        order by o.id desc
        limit :limit::integer
      )
    )
  )
order by v.id desc

-- name: slot
-- The submission that holds a scope's slot, and whether its job still lives. Read under the scope's lock, the answer stays true.
-- Locks: none.
-- Plan: submission_slot, job_pkey.
-- No row: the slot is free.
select s.id::text as id, s.job_id::text as job_id, coalesce(j.state, 'gone') as job_state
from pawl.submission s
left join pawl.job j on j.tenant = s.tenant and j.id = s.job_id
where s.tenant = :tenant::text
  and s.scope_id = :scope_id::bigint
  and s.state = 'submitting'

-- name: ended
-- Which of some submissions have ended: submitted or failed, or they cannot be submitted any more, or are gone.
-- Locks: none.
-- Plan: submission_pkey.
-- Rows: one for each of those, by its place in the question.
select g.ordinal::integer as ordinal
from unnest(:tenants::text[], :ids::bigint[]) with ordinality as g(tenant, id, ordinal)
left join lateral (
  select u.state
  from pawl.submission u
  where u.tenant = g.tenant
    and u.id = g.id
  offset 0
) s on true
where coalesce(s.state, 'gone') not in ('uploading', 'validating', 'upload-failed', 'validated', 'submitting')

-- name: expire
-- Removes a submission whose time is over and whose staged rows are gone, with its row errors.
-- Locks: the submission row, unless it is locked, then its errors.
-- Plan: submission_pkey, submission_error_pkey.
-- No row is returned.
with gone as (
  delete from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = (select w.id from pawl.submission w where w.tenant = :tenant::text and w.id = :id::bigint for update skip locked)
    and u.expires_at <= pawl.now()
    -- Not `exists`: the planner would take a match for likely and read the whole table to find none.
    and (
      select r.line
      from pawl.submission_row r
      where r.tenant = :tenant::text
        and r.submission = :id::bigint
      order by r.line
      limit 1
    ) is null
  returning u.id
)
delete from pawl.submission_error e
where e.tenant = :tenant::text
  and e.submission = (select g.id from gone g)

-- name: cleared
-- Notes that a submitted submission has no staged rows left.
-- Locks: the submission row, unless it is locked.
-- Plan: submission_pkey.
-- No row is returned.
update pawl.submission u
set is_staged = false
where u.tenant = :tenant::text
  and u.id = (select w.id from pawl.submission w where w.tenant = :tenant::text and w.id = :id::bigint for no key update skip locked)
  and u.state = 'submitted'

-- name: expire-invalid
-- Ends the time of a scope's invalid uploads but for the newest ones: each may have as many rows as a file can.
-- Locks: those submission rows.
-- Plan: submission_open_of_scope. Those few are then found by their ids.
-- No row is returned: the sweep removes those that expire with this.
update pawl.submission u
set expires_at = pawl.now()
where u.tenant = :tenant::text
  and u.id = any (
    array(
      select o.id
      from pawl.submission o
      where o.tenant = :tenant::text
        and o.scope_id = :scope_id::bigint
        and o.state = 'invalid'
        and o.id <> :id::bigint
      order by o.id desc
      offset :keep::integer
      limit 100
    )
  )
  and u.expires_at > pawl.now()

-- name: due
-- Submissions of all tenants that the sweep has something to do for: they hold their slot and their job is dead or gone (end); their time is over
-- (expire); they are submitted and have staged rows (clear). What a transaction has locked, which may stay open for hours, is left for later.
-- Locks: those submission rows, and the scopes of those to end, for this statement only; it waits for none.
-- Plan: submission_slot, record_scope_pkey, job_pkey, submission_expiry, submission_uncleared.
-- Rows: at most :limit of each; mostly none.
with orphaned as materialized (
  select u.tenant, u.id, u.record_set
  from pawl.submission u
  join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
  left join lateral (
    select j.state
    from pawl.job j
    where j.tenant = u.tenant
      and j.id = u.job_id
    offset 0
  ) h on true
  where u.state = 'submitting'
    and coalesce(h.state, 'dead') = 'dead'
  order by u.tenant, u.scope_id
  limit :limit::integer
  for no key update of u, s skip locked
),
expired as materialized (
  select u.tenant, u.id, u.record_set
  from pawl.submission u
  where u.expires_at <= pawl.now()
  order by u.expires_at
  limit :limit::integer
  for update skip locked
),
staged as materialized (
  select u.tenant, u.id, u.record_set
  from pawl.submission u
  where u.state = 'submitted'
    and u.is_staged
  order by u.tenant, u.id
  limit :limit::integer
  for no key update skip locked
)
select o.tenant, o.id::text as id, o.record_set, 'end' as need
from orphaned o
union all
select e.tenant, e.id::text, e.record_set, 'expire'
from expired e
union all
select w.tenant, w.id::text, w.record_set, 'clear'
from staged w

-- name: job-lock
-- Holds the job of a submission, so that no process works on it until the transaction ends.
-- Locks: the job row, unless it is locked.
-- Plan: job_pkey.
-- One row: its state; 'locked' if another transaction has it, 'gone' if it was cancelled.
with held as materialized (
  select j.state
  from pawl.job j
  where j.tenant = :tenant::text
    and j.id = :job_id::bigint
  for update skip locked
)
select coalesce((select h.state from held h), (select 'locked' from pawl.job j where j.tenant = :tenant::text and j.id = :job_id::bigint), 'gone') as state

-- name: resolve-failed
-- Resolves the alert about failed submissions of a set when none is left. One that is raised after this statement's snapshot has a higher count,
-- or is locked, and stays open.
-- Locks: the alert row, unless it is locked.
-- Plan: alert_open, submission_failed.
-- No row: none is open, a failed one is left, or the alert is locked.
select r.subject
from pawl.alert a
cross join lateral pawl.resolve_alerts(array[a.tenant], array[a.id], array[a.count]) r
where a.tenant = :tenant::text
  and a.code = 'submission.failed'
  and a.subject = :record_set::text
  and a.resolved_at is null
  and not exists (
    select
    from pawl.submission u
    where u.tenant = :tenant::text
      and u.record_set = :record_set::text
      and u.state = 'failed'
      and u.failure_class <> 'cancelled'
  )

-- name: once-answer
-- The stored answer of a put or append under its once key.
-- Locks: none.
-- Plan: the primary key of once.
-- No row: it was not used in the last 30 days.
select o.result::text as result
from pawl.once o
where o.tenant = :tenant::text
  and o.namespace = :namespace::text
  and o.key = :key::text
  and coalesce(o.expires_at, 'infinity') > pawl.now()

-- name: submission-event
-- One event about a submission, in the transaction that commits it or gives it up, which holds the scope: so the events of a scope are in the order of its numbers.
-- Locks: none that others wait for.
-- Plan: an insert.
-- One row: the id of the event.
select pawl.append_event(:tenant::text, 'default', :record_set::text, :scope::text, :type::text, :payload::jsonb) as answer
