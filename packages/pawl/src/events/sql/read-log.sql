-- Reads the log after a position: how far it looked, and the events that match, in order of position.
-- Locks: none.
-- Plan: log_page_pkey, then event_xid once per event, in the partitions of that page's days. A page has at most 200 positions, so the page
-- that holds :after + :scan ends before 200 more. The offset keeps the planner from pulling the look-up up, where it would open every day.
-- One row: the head, the number of positions that pages cover, and the events as one JSON array of arrays, which costs a reader half of what rows
-- would. A position without its event has a null id. Behind 2 MB, counted as stored, no further event is given, and found is larger than their number:
-- even if every one of them had been compressed as well as can be, the text would fit into what a text may hold, here and in Node.
with place as materialized (
  select s.position as head, s.generation, least(s.position, :after::bigint + :scan::bigint) as until
  from pawl.log_head s
  where s.tenant = ''
),
page as materialized (
  select p.first_position, p.last_position, p.from_at, p.to_at, p.generation, p.channels, p.xids, p.seqs, l.until
  from place l
  cross join pawl.log_page p
  where p.tenant = ''
    and p.last_position > :after::bigint
    and p.last_position < l.until + 200
    and p.first_position <= l.until
)
select l.head, l.generation as log_generation, l.until,
  (
    select coalesce(sum(least(p.last_position, p.until) - greatest(p.first_position, :after::bigint + 1) + 1), 0)
    from page p
  ) as covered,
  e.found, e.events
from place l
cross join lateral (
  select count(*) as found,
    json_agg(json_build_array(f.position, f.generation, f.xid, f.id, f.at_s, f.tenant, f.channel, f.aggregatetype, f.aggregateid, f.type, f.payload,
      f.headers)) filter (where coalesce(f.bytes_before, 0) < 2000000)::text as events
  from (
    select p.first_position + u.n - 1 as position, p.generation, u.xid::text as xid, e.id, date_part('epoch', e.created_at) as at_s, e.tenant, e.channel,
      e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers,
      sum(coalesce(pg_column_size(e.payload), 0) + coalesce(pg_column_size(e.headers), 0))
        over (order by p.first_position + u.n - 1 rows between unbounded preceding and 1 preceding) as bytes_before
    from page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    left join lateral (
      select v.id, v.created_at, v.tenant, v.channel, v.aggregatetype, v.aggregateid, v.type, v.payload, v.headers
      from pawl.event v
      where v.xid = u.xid
        and v.seq = u.seq
        and v.created_at >= p.from_at
        and v.created_at <= p.to_at
      offset 0
    ) e on true
    where p.first_position + u.n - 1 > :after::bigint
      and p.first_position + u.n - 1 <= p.until
      and (:channel::text is null or p.channels @> array[:channel::text] collate "C")
      and (
        e.id is null
        or (
          (:channel::text is null or e.channel = :channel::text)
          and (:tenant::text is null or e.tenant = :tenant::text)
          and (
            :bucket_from::integer is null
            or pawl.event_bucket(e.tenant, e.aggregateid) between :bucket_from::integer and :bucket_to::integer
          )
        )
      )
    order by 1
    limit :limit::integer
  ) f
) e
