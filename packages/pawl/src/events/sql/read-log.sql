-- Reads the log after a position: how far it looked, and the events that match, in order of position.
-- Locks: none.
-- Plan: log_page_pkey, then event_xid once per event, in the partitions of that page's days. A page has at most 200 positions, so the page
-- that holds :after + :scan ends before 200 more. The offset keeps the planner from pulling the look-up up, where it would open every day.
-- One row: the head, the number of positions that pages cover, and of the events a text per column, which costs a reader less than half of what rows
-- would: words between spaces, or JSON arrays. A position without its event has the id '-'. Behind 2 MB, counted as stored, no further event is given (is_cut):
-- even if every one of them had been compressed as well as can be, a text would fit into what it may hold, here and in Node.
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
  coalesce(e.bytes, 0) >= 2000000 as is_cut,
  e.positions, e.generations, e.xids, e.ids, e.times, e.tenants, e.channels, e.aggregate_types, e.keys, e.types, e.payloads, e.headers
from place l
cross join lateral (
  select max(m.bytes) as bytes,
    string_agg(m.position::text, ' ') as positions,
    string_agg(m.generation::text, ' ') as generations,
    string_agg(m.xid, ' ') as xids,
    string_agg(coalesce(m.id::text, '-'), ' ') as ids,
    string_agg(coalesce(m.at_s, 0)::text, ' ') as times,
    json_agg(m.tenant)::text as tenants,
    json_agg(m.channel)::text as channels,
    json_agg(m.aggregatetype)::text as aggregate_types,
    json_agg(m.aggregateid)::text as keys,
    json_agg(m.type)::text as types,
    '[' || string_agg(coalesce(m.payload::text, 'null'), ',') || ']' as payloads,
    '[' || string_agg(coalesce(m.headers::text, 'null'), ',') || ']' as headers
  from (
    select p.first_position + u.n - 1 as position, p.generation, u.xid::text as xid, e.id, date_part('epoch', e.created_at) as at_s, e.tenant, e.channel,
      e.aggregatetype, e.aggregateid, e.type, e.payload, e.headers,
      sum(coalesce(pg_column_size(e.payload), 0) + coalesce(pg_column_size(e.headers), 0)) over (order by p.first_position + u.n - 1) as bytes
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
  ) m
  where m.bytes - coalesce(pg_column_size(m.payload), 0) - coalesce(pg_column_size(m.headers), 0) < 2000000
) e
