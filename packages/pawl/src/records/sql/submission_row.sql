-- name: lookup
-- What the rows of one batch meet: the committed version of each, as of the submission's baseline, and whether its content is the same.
-- Locks: none.
-- Plan: record_pkey, then record_version_pkey for each; a key that no record has costs one probe.
-- Rows: one for each given row that is new or differs, with its old data; and one for all that are the same, as arrays: thousands of rows would
-- cost the client more than the comparison. A record without a committed version counts as new: who wrote it has not committed, and if it
-- does, this submission is superseded; if it fails, the record is purged.
with met as materialized (
  select g.ordinal, v.record_id, v.number, v.status, coalesce(v.hash = g.hash, false) as is_same, case when v.hash <> g.hash then v.data end as data
  from unnest(:types::text[], :keys::text[], :hashes::uuid[]) with ordinality as g(type, key, hash, ordinal)
  left join lateral (
    -- One subquery and not two: the planner would keep the versions of the second in a cache that nothing hits.
    select l.record_id, l.number, l.status, l.hash, l.data
    from pawl.record r
    cross join lateral pawl.version_at(:tenant::text, r.id, :committed::bigint) l
    where r.tenant = :tenant::text
      and r.scope_id = :scope_id::bigint
      and r.type = g.type
      and r.key = g.key
    offset 0
  ) v on true
)
select m.ordinal::integer as ordinal, coalesce(m.record_id, nextval('pawl.record_id'))::text as record_id, m.record_id is null as is_new,
  coalesce(m.status <> 'DELETED', false) as is_live, m.number::text as number, m.data::text as data, null as same_ordinals, null as same_ids, null as same_numbers
from met m
where not m.is_same
union all
select null, null, null, null, null, null, array_agg(m.ordinal)::text, array_agg(m.record_id)::text, array_agg(m.number)::text
from met m
where m.is_same
having count(*) > 0

-- name: missing
-- Records of the types that a submission knows that are committed as of its baseline and that it leaves out, in the order of their keys, at most :limit.
-- Locks: none.
-- Plan: record_pkey, submission_row_pkey, record_version_pkey. The two sets are subtracted by EXCEPT, which sorts or hashes; an anti-join of
-- rows that were just staged would be planned as a loop, because nothing is known about them yet.
-- Rows: the next ones after (:after_type, :after_key).
with gone as materialized (
  select r.id, r.type, r.key
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and (r.type, r.key) > (:after_type::text, :after_key::text)
    and r.type = any (:types::text[])
  except
  select t.record_id, t.type, t.key
  from pawl.submission_row t
  where t.tenant = :tenant::text
    and t.submission = :id::bigint
    and t.kind <> 'deleted'
)
select g.type, g.key, v.data as before, null as after
from gone g
cross join lateral pawl.version_at(:tenant::text, g.id, :committed::bigint) v
where v.status <> 'DELETED'
order by g.type, g.key
limit :limit::integer

-- name: restage
-- The rows of a submission with their whole content, for comparing them again: an unchanged row is as its record was at the old baseline.
-- Locks: none.
-- Plan: submission_row_pkey, record_version_pkey. A length is known without reading a long text.
-- Rows: the next ones after :after, in the order of their lines, none after 4 MB; tombstones are left out, the rebase finds its own.
select p.line::text as line, p.type, p.key, p.hash::text as hash, p.data::text as data, p.classification
from (
  select f.line, f.type, f.key, f.hash, f.data, f.classification,
    sum(octet_length(f.data::text)) over (order by f.line rows between unbounded preceding and 1 preceding) as bytes_before
  from (
    select r.line, r.type, r.key, coalesce(r.hash, v.hash) as hash, coalesce(r.data, v.data) as data,
      case when r.hash is null then v.classification else r.classification end as classification
    from pawl.submission_row r
    left join lateral pawl.version_at(r.tenant, r.record_id, :committed::bigint) v on r.kind = 'unchanged'
    where r.tenant = :tenant::text
      and r.submission = :id::bigint
      and r.line > :after::bigint
      and r.kind in ('created', 'updated', 'unchanged')
    order by r.line
    limit :limit::integer
  ) f
) p
where coalesce(p.bytes_before, 0) < 4000000
order by p.line

-- name: counts
-- How many rows of each kind are staged, and how many different records they name. Those are counted by a hash, so the count can be too small;
-- duplicates then compares the keys themselves.
-- Locks: none.
-- Plan: submission_row_pkey.
-- One row.
select count(*) filter (where r.kind = 'created')::integer as created, count(*) filter (where r.kind = 'updated')::integer as updated,
  count(*) filter (where r.kind = 'unchanged')::integer as unchanged, count(*) filter (where r.kind = 'invalid-created')::integer as invalid_created,
  count(*) filter (where r.kind = 'invalid-updated')::integer as invalid_updated, count(*) filter (where r.kind = 'unkeyed')::integer as invalid_unkeyed,
  count(distinct hashtextextended(r.key, hashtext(r.type))) filter (where r.kind not in ('unkeyed', 'deleted'))::integer as keys
from pawl.submission_row r
where r.tenant = :tenant::text
  and r.submission = :id::bigint

-- name: duplicates
-- Rows of a submission that name the same record as an earlier row of it, at most :limit.
-- Locks: none.
-- Plan: submission_row_pkey, sorted by key.
-- Rows: each such row with the line of the first, and how many there are in all.
select d.line::text as line, d.type, d.key, d.first_line::text as first_line, count(*) over ()::text as total
from (
  select r.line, r.type, r.key, min(r.line) over (partition by r.type, r.key) as first_line
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.kind <> 'unkeyed'
) d
where d.line > d.first_line
order by d.line
limit :limit::integer

-- name: preview
-- A page of staged rows of the given kinds, with what each record was at the submission's baseline.
-- Locks: none.
-- Plan: submission_row_pkey, record_version_pkey.
-- Rows: the next ones after line :after.
select r.line::text as line, r.kind, r.type, r.key, r.data as after, v.data as before
from pawl.submission_row r
left join lateral pawl.version_at(r.tenant, r.record_id, :committed::bigint) v on r.kind in ('updated', 'unchanged', 'invalid-updated')
where r.tenant = :tenant::text
  and r.submission = :id::bigint
  and r.line > :after::bigint
  and r.kind = any (:kinds::text[])
order by r.line
limit :limit::integer

-- name: chunk-end
-- Where the next chunk ends: the line of its last row.
-- Locks: none.
-- Plan: submission_row_pkey.
-- One row: null when no row is left.
select max(b.line)::text as line
from (
  select r.line
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line > :after::bigint
    and r.kind in ('created', 'updated', 'deleted')
  order by r.line
  limit :limit::integer
) b

-- name: tombstones
-- Stages a tombstone for every record of the types that a submission knows and that it leaves out, after its last line.
-- Locks: none that others wait for.
-- Plan: record_pkey, submission_row_pkey, record_version_pkey. EXCEPT as in missing.
-- Rows: how many were staged, and the last line of all.
with gone as materialized (
  select r.id, r.type, r.key
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = any (:types::text[])
  except
  select t.record_id, t.type, t.key
  from pawl.submission_row t
  where t.tenant = :tenant::text
    and t.submission = :id::bigint
),
added as (
  insert into pawl.submission_row (tenant, submission, line, record_id, kind, is_new, type, key)
  select :tenant::text, :id::bigint, :last_line::bigint + row_number() over (order by g.type, g.key), g.id, 'deleted', false, g.type, g.key
  from gone g
  cross join lateral pawl.version_at(:tenant::text, g.id, :committed::bigint) v
  where v.status <> 'DELETED'
  returning line
)
select count(*)::text as rows, coalesce(max(a.line), :last_line::bigint)::text as last_line
from added a

-- name: stage-clear
-- Removes staged rows of a submission, at most :limit, lowest line first, for the one who may: with a fence, the upload that was started over
-- and has not staged anything; without, the sweep, of a submission that is submitted or whose time is over.
-- Locks: the submission row, then those rows. While it is held, no other process can stage, submit or restart the upload. The sweep waits for no lock.
-- Plan: submission_pkey, submission_row_pkey.
-- One row: how many are gone; fewer than :limit means that none is left. No row: it is not theirs, or locked and the sweep's.
with uploads as materialized (
  select u.id
  from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and u.fence = :fence::bigint
    and u.state = 'uploading'
    and u.lines = 0
  for no key update
),
swept as materialized (
  select u.id
  from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and :fence::bigint is null
    and (u.state = 'submitted' or u.expires_at <= pawl.now())
  for no key update skip locked
),
mine as materialized (
  select w.id
  from uploads w
  union all
  select w.id
  from swept w
),
gone as (
  delete from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.submission = (select m.id from mine m)
    and r.line <= (
      select max(b.line)
      from (
        select t.line
        from pawl.submission_row t
        where t.tenant = :tenant::text
          and t.submission = :id::bigint
        order by t.line
        limit :limit::integer
      ) b
    )
  returning r.line
)
select (select count(*) from gone)::integer as gone
from mine

-- name: erased-since
-- Removes staged rows that name a record which was erased after the rows were received, from whatever upload they came, and their errors.
-- Locks: those rows.
-- Plan: submission_pkey, submission_row_pkey, submission_error_pkey. Erasures by record_erasure_of_scope.
-- One row: how many they were, and one of them; 0 almost always, and then no staged row is read.
with erased as materialized (
  select e.type, e.key
  from pawl.submission u
  join pawl.record_erasure e on e.tenant = u.tenant and e.scope_id = u.scope_id and e.revision > u.received_at_revision
  where u.tenant = :tenant::text
    and u.id = :id::bigint
),
gone as (
  delete from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and (select count(*) from erased) > 0
    and (r.type, r.key) in (select e.type, e.key from erased e)
  returning r.line, r.type, r.key
),
quoted as (
  delete from pawl.submission_error q
  using gone g
  where q.tenant = :tenant::text
    and q.submission = :id::bigint
    and q.line = g.line
)
select count(*)::integer as rows, min(g.type) as type, min(g.key) as key
from gone g

-- name: purge-start
-- The line at which the next run of a purge ends, :limit rows back.
-- Locks: none.
-- Plan: submission_row_pkey.
-- One row: 0 when the run takes everything that is left.
select coalesce(min(b.line) filter (where b.place > :limit::integer), 0)::text as line
from (
  select r.line, row_number() over (order by r.line desc) as place
  from pawl.submission_row r
  where r.tenant = :tenant::text
    and r.submission = :id::bigint
    and r.line <= :from::bigint
    and r.kind in ('created', 'updated', 'deleted')
  order by r.line desc
  limit :limit::integer + 1
) b

-- name: other-types
-- How many live records of a scope, as of a number, are of types that its set does not have any more.
-- Locks: none.
-- Plan: record_pkey, record_version_pkey. The types are found by skipping from one to the next: most scopes have no record of another.
-- One row: the count.
with recursive found (type) as (
  select (select min(r.type) from pawl.record r where r.tenant = :tenant::text and r.scope_id = :scope_id::bigint)
  union all
  select (select min(r.type) from pawl.record r where r.tenant = :tenant::text and r.scope_id = :scope_id::bigint and r.type > f.type)
  from found f
  where f.type is not null
)
select count(*)::text as live
from found f
cross join lateral (
  select r.id
  from pawl.record r
  where r.tenant = :tenant::text
    and r.scope_id = :scope_id::bigint
    and r.type = f.type
  offset 0
) o
cross join lateral pawl.version_at(:tenant::text, o.id, :committed::bigint) v
where f.type <> all (:types::text[])
  and v.status <> 'DELETED'

-- name: errors-add
-- Stores row errors.
-- Locks: none that others wait for.
-- Plan: an insert.
-- No row is returned.
insert into pawl.submission_error (tenant, submission, ordinal, line, code, field, value, reason)
select :tenant::text, :id::bigint, :first::bigint + e.ordinal, (e.value ->> 'line')::bigint, e.value ->> 'code', e.value ->> 'column', e.value ->> 'value',
  e.value ->> 'reason'
from jsonb_array_elements(:errors::jsonb) with ordinality as e(value, ordinal)

-- name: errors-clear
-- Removes the stored row errors of a submission; they are bounded.
-- Locks: those rows.
-- Plan: submission_error_pkey.
-- No row is returned.
delete from pawl.submission_error e
where e.tenant = :tenant::text
  and e.submission = :id::bigint

-- name: errors-list
-- A page of the stored row errors of a submission.
-- Locks: none.
-- Plan: submission_error_pkey.
-- Rows: the next ones after :after.
select e.ordinal::text as ordinal, e.line::text as line, e.code, e.field as column, e.value, e.reason
from pawl.submission_error e
where e.tenant = :tenant::text
  and e.submission = :id::bigint
  and e.ordinal > :after::bigint
order by e.ordinal
limit :limit::integer
