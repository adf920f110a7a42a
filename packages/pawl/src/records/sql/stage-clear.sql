-- Removes staged rows of a submission, at most :limit, lowest line first, for the one who may: with a fence, the upload that was started over
-- and has not staged anything; without, whoever tends a submission that is submitted or whose time is over.
-- Locks: the submission row, then those rows. With it nobody can stage, submit or start it over meanwhile.
-- Plan: submission_pkey, submission_row_pkey.
-- One row: how many are gone; fewer than :limit means that none is left. No row: it is not theirs.
with mine as materialized (
  select u.id
  from pawl.submission u
  where u.tenant = :tenant::text
    and u.id = :id::bigint
    and case
      when :fence::bigint is null then u.state = 'submitted' or u.expires_at <= pawl.now()
      else u.fence = :fence::bigint and u.state = 'uploading' and u.lines = 0
    end
  for no key update
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
