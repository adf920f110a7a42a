-- A page of the submissions of a record set, newest first.
-- Locks: none.
-- Plan: submission_of_set, submission_open_of_set, submission_pkey, record_scope_pkey.
-- Rows: the next ones before :before.
select u.id::text as id, u.record_set, u.scope_id::text as scope_id, s.scope, u.origin, u.state, u.revision, u.fence::text as fence,
  u.baseline::text as baseline, u.baseline_number::text as baseline_number,
  u.received_at_revision::text as received_at_revision, to_json(u.types)::text as types, u.attributes::text as attributes, u.number::text as number, u.schema_version, u.missing_policy, u.format, u.name,
  u.submitted_by, u.rebased_from::text as rebased_from, to_json(u.ignored_sheets)::text as ignored_sheets, u.lines::text as lines, u.last_line::text as last_line, u.bytes::text as bytes,
  u.created::text as created, u.updated::text as updated, u.unchanged::text as unchanged, u.missing::text as missing, u.deleted::text as deleted,
  u.invalid_created::text as invalid_created, u.invalid_updated::text as invalid_updated, u.invalid_unkeyed::text as invalid_unkeyed,
  u.errors::text as errors, u.applied_line::text as applied_line,
  (u.applied_created + u.applied_updated + u.applied_deleted)::text as applied, u.job_id::text as job_id, u.failures, u.failure_class, u.error,
  u.created_at, u.submitting_at, u.ended_at, u.expires_at, coalesce(u.expires_at < pawl.now(), false) as is_expired, s.revision::text as scope_revision,
  s.committed::text as committed
from pawl.submission u
join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
where u.tenant = :tenant::text
  -- Only one of the two is read: with a state few have, looking for it among all would read every put.
  and u.id = any (
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
order by u.id desc
