-- name: record-page
-- A page of records of a scope in the order of their keys, as they are committed or were at a number. With a number that stays the same, pages
-- fit together whatever is committed between them.
-- Locks: none.
-- Plan: record_scope_name, record_pkey in order, record_version_pkey. Nothing is sorted.
-- Rows: the next ones after (:after_type, :after_key), none after :bytes_max; bytes are those up to each; pinned is the number that they were
-- read at.
with scope as materialized (
  select s.id, least(coalesce(:number::bigint, s.committed), s.committed) as number
  from pawl.record_scope s
  where s.tenant = :tenant::text
    and s.record_set = :record_set::text
    and s.scope = :scope::text
)
select p.type, p.key, p.number::text as number, p.status, p.submission::text as submission, p.schema_version, p.classification,
  to_json(p.changed) as changed, p.data, p.is_erased, (select s.number from scope s)::text as pinned, p.bytes::integer as bytes
from (
  select f.type, f.key, f.number, f.status, f.submission, f.schema_version, f.classification, f.changed, f.data, f.is_erased, f.size,
    sum(f.size) over (order by f.type, f.key rows unbounded preceding) as bytes
  from (
    select r.type, r.key, v.number, v.status, v.submission, v.schema_version, v.classification, v.changed, v.data, v.is_erased,
      coalesce(octet_length(v.data::text), 0) as size
    from pawl.record r
    -- Not pawl.version_at: the planner does not inline a function that is given a subquery.
    cross join lateral (
      select w.number, w.status, w.submission, w.schema_version, w.classification, w.changed, w.data, w.is_erased
      from pawl.record_version w
      where w.tenant = :tenant::text
        and w.record_id = r.id
        and w.number <= (select s.number from scope s)
      order by w.number desc
      limit 1
    ) v
    where r.tenant = :tenant::text
      -- Not a join: with one value for the scope the index has the order of the page, and the scan ends with the page.
      and r.scope_id = (select s.id from scope s)
      and (r.type, r.key) > (:after_type::text, :after_key::text)
      and (:type::text is null or r.type = :type::text)
      and (:with_deleted::boolean or v.status <> 'DELETED')
      and (:filters::text[] is null or v.data::jsonb @> any (:filters::jsonb[]))
    order by r.type, r.key
    limit :limit::integer
  ) f
) p
where p.bytes - p.size < :bytes_max::integer
order by p.type, p.key

-- name: history
-- The versions of one record, newest first; the first of them is the record as it is committed, or was at a number.
-- Locks: none.
-- Plan: record_scope_name, record_pkey, record_version_pkey backwards, submission_pkey. Only the versions of the page are read.
-- Rows: those from :number on backwards, or null: from the committed one.
select r.type, r.key, v.number::text as number, v.status, v.submission::text as submission, v.schema_version, v.classification,
  to_json(v.changed) as changed, v.data, v.is_erased, u.ended_at as committed_at, u.submitted_by, u.origin
from pawl.record_scope s
join pawl.record r on r.tenant = s.tenant and r.scope_id = s.id
cross join lateral pawl.version_at(r.tenant, r.id, least(s.committed, :number::bigint), :limit::integer) v
left join pawl.submission u on u.tenant = r.tenant and u.id = v.submission
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text
  and r.type = :type::text
  and r.key = :key::text
order by v.number desc

-- name: changes
-- A page of the records that a committed submission changed, before and after. It reads every record of the scope once per page.
-- Locks: none.
-- Plan: record_pkey, record_version_pkey.
-- Rows: the next ones after (:after_type, :after_key).
select r.type, r.key, v.data as after, p.data as before
from pawl.record r
cross join lateral (
  select w.status, w.data
  from pawl.record_version w
  where w.tenant = r.tenant
    and w.record_id = r.id
    and w.number = :number::bigint
  offset 0
) v
left join lateral pawl.version_at(r.tenant, r.id, :number::bigint - 1) p on true
where r.tenant = :tenant::text
  and r.scope_id = :scope_id::bigint
  and (r.type, r.key) > (:after_type::text, :after_key::text)
  and v.status = :status::text
order by r.type, r.key
limit :limit::integer

-- name: number-at
-- The number that was committed at a time.
-- Locks: none.
-- Plan: submission_number.
-- One row: 0 when nothing was committed by then.
select coalesce(max(u.number), 0)::text as number
from pawl.submission u
where u.tenant = :tenant::text
  and u.scope_id = :scope_id::bigint
  and u.state = 'submitted'
  and u.ended_at <= :at::timestamptz

-- name: audit
-- Counts a scope again: live records, versions that are not committed, and records without any version.
-- Locks: none.
-- Plan: record_scope_name, record_pkey, record_version_pkey.
-- No row: there is no such scope.
select s.live::text as live, s.committed::text as committed, c.live::text as counted_live, c.uncommitted::text as uncommitted, c.empty::text as empty,
  (select u.number::text from pawl.submission u where u.tenant = s.tenant and u.scope_id = s.id and u.state = 'submitting') as submitting
from pawl.record_scope s
cross join lateral (
  select count(*) filter (where v.status <> 'DELETED') as live, coalesce(sum(n.uncommitted), 0) as uncommitted, count(*) filter (where n.versions = 0) as empty
  from pawl.record r
  left join lateral pawl.version_at(r.tenant, r.id, s.committed) v on true
  cross join lateral (
    select count(*) as versions, count(*) filter (where w.number > s.committed) as uncommitted
    from pawl.record_version w
    where w.tenant = r.tenant
      and w.record_id = r.id
  ) n
  where r.tenant = s.tenant
    and r.scope_id = s.id
) c
where s.tenant = :tenant::text
  and s.record_set = :record_set::text
  and s.scope = :scope::text

-- name: apply-chunk
-- Writes the versions of one run of staged rows, and how far it came, in one statement. What it writes has a number above the scope's
-- committed one, so no reader sees it. The caller holds its job by the fence; and a chunk that was applied before finds another :after. What
-- failed before is forgotten: only failures without progress between them add up.
-- Locks: the submission row.
-- Plan: submission_row_pkey, twice, since keeping the wide rows between the two inserts costs more than reading them again; inserts into
-- record and record_version; its own submission by the slot or the primary key.
-- No row: it is not submitting under this number any more, or has come to another line.
with its_turn as materialized (
  select u.id
  from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.state = 'submitting'
    and u.number = :number::bigint
    and u.applied_line = :after::bigint
),
records as (
  insert into pawl.record (tenant, scope_id, type, key, id)
  select :tenant::text, :scope_id::bigint, r.type, r.key, r.record_id
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = (select t.id from its_turn t)
    and r.line > :after::bigint
    and r.line <= :upto::bigint
    and r.kind = 'created'
    and r.is_new
),
versions as (
  insert into pawl.record_version (tenant, record_id, number, submission, schema_version, status, hash, classification, data, changed)
  select :tenant::text, r.record_id, :number::bigint, :id::bigint, :schema_version::integer,
    upper(r.kind), r.hash, r.classification, r.data, r.changed
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = (select t.id from its_turn t)
    and r.line > :after::bigint
    and r.line <= :upto::bigint
    and r.kind in ('created', 'updated', 'deleted')
  returning status
),
written as materialized (
  select count(*) filter (where v.status = 'CREATED') as created, count(*) filter (where v.status = 'UPDATED') as updated,
    count(*) filter (where v.status = 'DELETED') as deleted
  from versions v
)
update pawl.submission u
set applied_line = :upto::bigint,
  applied_created = u.applied_created + w.created,
  applied_updated = u.applied_updated + w.updated,
  applied_deleted = u.applied_deleted + w.deleted,
  failures = 0,
  failure_class = null,
  error = null
from written w
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = :after::bigint
returning (u.applied_created + u.applied_updated + u.applied_deleted)::text as applied

-- name: purge-chunk
-- Takes back what a submission wrote for one run of its staged rows, last first, and how far it had come, in one statement.
-- Locks: the submission row, and rows that no reader can see.
-- Plan: submission_row_pkey, record_version_pkey, record_pkey; its own submission by the slot or the primary key. Each version and each record is
-- looked up by its own key and then deleted by its place: nothing is known yet about rows that were just written, and a join of them would be
-- planned as a loop over all of one for each of the other.
-- No row: it is not submitting under this number, or has come to another line. Then the caller rolls back what was deleted.
with chunk as materialized (
  select r.record_id, r.kind, r.is_new, r.type, r.key
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line > :downto::bigint
    and r.line <= :from::bigint
    and r.kind in ('created', 'updated', 'deleted')
),
versions as (
  delete from pawl.record_version v
  where v.ctid = any (
    array(
      select w.ctid
      from chunk c
      cross join lateral (
        select w.ctid
        from pawl.record_version w
        where w.tenant = :tenant::text
          and w.record_id = c.record_id
          and w.number = :number::bigint
          and w.submission = :id::bigint
        offset 0
      ) w
    )
  )
  returning v.status
),
records as (
  delete from pawl.record r
  where r.ctid = any (
    array(
      select o.ctid
      from chunk c
      cross join lateral (
        select p.ctid
        from pawl.record p
        where p.tenant = :tenant::text
          and p.scope_id = :scope_id::bigint
          and p.type = c.type
          and p.key = c.key
          and p.id = c.record_id
        offset 0
      ) o
      where c.is_new
        and c.kind = 'created'
    )
  )
)
update pawl.submission u
set applied_line = :downto::bigint,
  applied_created = u.applied_created - (select count(*) from versions v where v.status = 'CREATED'),
  applied_updated = u.applied_updated - (select count(*) from versions v where v.status = 'UPDATED'),
  applied_deleted = u.applied_deleted - (select count(*) from versions v where v.status = 'DELETED')
where u.tenant = :tenant::text
  and u.id = :id::bigint
  and u.state = 'submitting'
  and u.number = :number::bigint
  and u.applied_line = :from::bigint
returning u.applied_line::text as applied_line

-- name: erase
-- Takes the data out of every version of one record, takes the record out of everything that is staged for its scope, with what errors quote
-- of it, and notes the erasure. Numbers, states and submissions stay. The caller holds the scope's lock and has seen that its slot is free. The scope's new revision
-- supersedes what was compared with the old data and what is left of those uploads, which cannot be rebased: erased-since. What was
-- submitted may be staged until the sweep clears it, so the submissions that wrote a version are searched as well.
-- Locks: the version rows of the record, its staged rows and their errors, the scope row.
-- Plan: record_pkey, record_version_pkey, submission_open_of_scope, submission_row_pkey, submission_error_pkey, record_scope_pkey.
-- No row: there is no such record, staged or not, or it was erased before; nothing is changed.
with found as materialized (
  select r.id
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = :type::text
    and r.key = :key::text
),
erased as (
  update pawl.record_version v
  set data = null,
    hash = null,
    classification = null,
    changed = null,
    is_erased = true
  from found f
  where v.tenant = :tenant::text
    and v.record_id = f.id
    and not v.is_erased
    and v.status <> 'DELETED'
  returning v.record_id
),
staged as (
  delete from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = any (
      array(
        select u.id
        from pawl.submission u
        where u.tenant = :tenant::text
          and u.scope_id = :scope_id::bigint
          and u.state <> 'submitted'
        union
        select w.submission
        from found f
        join pawl.record_version w on w.tenant = :tenant::text and w.record_id = f.id
      )
    )
    and r.type = :type::text
    and r.key = :key::text
  returning r.submission, r.line
),
quoted as (
  delete from pawl.submission_error e
  using staged t
  where e.tenant = :tenant::text
    and e.submission = t.submission
    and e.line = t.line
),
counted as materialized (
  select (select count(*) from erased e) as versions, (select count(*) from staged t) as staged
),
moved as (
  update pawl.record_scope s
  set revision = s.revision + 1
  from counted c
  where s.tenant = :tenant::text
    and s.id = :scope_id::bigint
    and c.versions + c.staged > 0
  returning s.revision
)
insert into pawl.record_erasure (tenant, scope_id, record_id, revision, type, key, versions, reason, erased_by)
select :tenant::text, :scope_id::bigint, (select f.id from found f), m.revision, :type::text, :key::text, c.versions, left(:reason::text, 2000), left(:erased_by::text, 500)
from moved m, counted c
returning versions

-- name: erase-lock
-- Waits for the batches that are being staged for a scope, and holds its uploads back: a row of a batch that commits later would not be seen
-- by erase. The caller holds the scope's lock.
-- Locks: the submission rows of uploads, FOR NO KEY UPDATE.
-- Plan: submission_open_of_scope.
-- Rows: one for each.
select u.id
from pawl.submission u
where u.tenant = :tenant::text
  and u.scope_id = :scope_id::bigint
  and u.state in ('uploading', 'validating')
order by u.id
for no key update

-- name: erase-events
-- Removes what the events of one record say, and notes the person and the reason in the audit. Their positions stay. The caller holds the scope's lock.
-- Locks: those events' rows.
-- Plan: record_pkey, record_version_pkey, submission_pkey. pawl.erase_events reads the events of the days on which the record was changed; no
-- index serves it, because every append would pay for it.
-- One row: how many events were emptied.
with written as materialized (
  select min(u.submitting_at) - interval '1 day' as first_at, max(u.ended_at) + interval '1 day' as last_at
  from pawl.record r
  join pawl.record_version v on v.tenant = r.tenant and v.record_id = r.id
  join pawl.submission u on u.tenant = v.tenant and u.id = v.submission
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = :type::text
    and r.key = :key::text
),
gone as materialized (
  select pawl.erase_events(:tenant::text, :record_set::text, :scope::text, '{record.created,record.updated}',
    jsonb_build_object('type', :type::text, 'key', :key::text), w.first_at, w.last_at) as events
  from written w
)
select g.events as erased,
  case
    when g.events > 0 then pawl.write_audit(:tenant::text, :erased_by::text, 'records.erase', :record_set::text || ' ' || :scope::text, :reason::text,
      jsonb_build_object('type', :type::text, 'key', :key::text, 'events', g.events))::text
  end as noted
from gone g

-- name: record-events
-- One event for each of the given records, which a put or append changed, in its transaction. That holds the scope, so the events of one record are in order.
-- Locks: none that others wait for.
-- Plan: record_version_pkey for each.
-- One row: how many.
select pawl.append_key_events(:tenant::text, :record_set::text, :scope::text, array_agg('record.' || lower(v.status) order by g.ordinal),
  array_agg(jsonb_build_object('set', :record_set::text, 'scope', :scope::jsonb, 'type', g.type, 'key', g.key, 'submission', v.submission::text, 'number',
    v.number::text, 'changed', to_jsonb(v.changed), 'data', v.data) order by g.ordinal)) as added
from unnest(:record_ids::bigint[], :types::text[], :keys::text[]) with ordinality as g(record_id, type, key, ordinal)
cross join lateral (
  select w.status, w.submission, w.number, w.changed, w.data
  from pawl.record_version w
  where w.tenant = :tenant::text
    and w.record_id = g.record_id
    and w.number = :number::bigint
  offset 0
) v

-- name: staged-events
-- One event for each of the next records that a submission changes, in its committing transaction. That holds the scope, so the events of one
-- record are in order. They are read from its staged rows, which its versions were written from and which stay until the commit.
-- Locks: none that others wait for.
-- Plan: submission_row_pkey.
-- One row: the last line, null when none is left. At most :limit rows, and none after 4 MB: an array holds at most 1 GB.
select max(p.line)::text as line,
  pawl.append_key_events(:tenant::text, :record_set::text, :scope::text, array_agg('record.' || p.kind order by p.line),
    array_agg(jsonb_build_object('set', :record_set::text, 'scope', :scope::jsonb, 'type', p.type, 'key', p.key, 'submission', p.submission::text,
      'number', :number::text, 'changed', to_jsonb(p.changed), 'data', p.data) order by p.line)) as added
from (
  select f.line, f.kind, f.type, f.key, f.submission, f.changed, f.data,
    sum(octet_length(f.data::text)) over (order by f.line rows between unbounded preceding and 1 preceding) as bytes_before
  from (
    select r.line, r.kind, r.type, r.key, r.submission, r.changed, r.data
    from pawl.submission_row r
    where r.tenant = :tenant::text
      and r.submission = :id::bigint
      and r.line > :after::bigint
      and r.kind in ('created', 'updated', 'deleted')
    order by r.line
    limit :limit::integer
  ) f
) p
where coalesce(p.bytes_before, 0) < 4000000
