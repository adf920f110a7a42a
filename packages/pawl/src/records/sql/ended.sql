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
