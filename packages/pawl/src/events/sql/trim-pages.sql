-- Removes pages whose events are all gone: those before the first page that has an event in a partition that is still there. None while a
-- detached partition waits to be dropped, for its events are checked against their pages: both are looked at in one snapshot, because
-- another process may detach one at any moment.
-- Locks: those pages' rows.
-- Plan: log_page_pkey.
-- One row: how many pages went; the last page always stays.
with kept as materialized (
  select least(
      (select min(d.from_at) from pawl.day_partitions('event') d where d.from_at is not null),
      (select min(e.created_at) from pawl.event_first e)
    ) as from_at
),
gone as (
  delete from pawl.log_page g
  where g.tenant = ''
    and g.last_position in (
      select p.last_position
      from pawl.log_page p
      where p.tenant = ''
        and not exists (
          select
          from pg_class c
          where c.relnamespace = 'pawl'::regnamespace
            and c.relname ~ '^event_[0-9]{8}$'
            and c.relkind = 'r'
            and not c.relispartition
        )
        and p.last_position < coalesce(
          (
            select q.last_position
            from pawl.log_page q
            cross join kept k
            where q.tenant = ''
              and q.to_at >= k.from_at
            order by q.last_position
            limit 1
          ),
          (select max(q.last_position) from pawl.log_page q where q.tenant = '')
        )
      order by p.last_position
      limit :limit::integer
    )
  returning 1
)
select count(*)::integer as removed
from gone
