-- name: erase
-- Removes what the events of one key say, and notes who did it and why. Their places in the log stay.
-- Locks: those events' rows.
-- Plan: reads every partition; no index serves it, because every append would pay for it.
-- One row: how many events were emptied.
select g.events as erased
from (
  select pawl.erase_events(:tenant::text, :aggregatetype::text, :aggregateid::text) as events
  offset 0
) g
cross join lateral pawl.write_audit(:tenant::text, :actor::text, 'events.erase', :aggregatetype::text || ' ' || :aggregateid::text, :reason::text,
  jsonb_build_object('aggregatetype', :aggregatetype::text, 'key', :aggregateid::text, 'events', g.events)) n

-- name: leftovers
-- Partitions of events that an earlier run of retention detached and did not come to drop.
-- Locks: none.
-- Plan: the catalogue.
-- Rows: their names.
select c.relname as name
from pg_class c
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
where c.relname ~ '^event_[0-9]{8}$'
  and c.relkind = 'r'
  and not c.relispartition
order by c.relname

-- name: empty-first
-- Removes events of long ago from the open-ended first partition, which is never dropped. Only those up to the position that was looked at.
-- Locks: those rows.
-- Plan: event_first and log_page in full; the first is empty but for events that were given a time of their own.
-- No row is returned.
delete from pawl.event_first e
where exists (
  select
  from (
    select u.xid, u.seq
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    where p.tenant = ''
      and p.first_position + u.n - 1 <= :until::bigint
    offset 0
  ) k
  where k.xid = e.xid
    and k.seq = e.seq
)

-- name: append-event
-- Appends one event. An insert, because a call of pawl.append_event cost 9 to 17 µs more of server CPU; operators are left out and functions have their
-- schema, because it also runs under the search path of a caller.
-- Locks: none but its own new row.
-- Plan: an insert.
-- One row, one string: 'id xid seq'.
insert into pawl.event as n (tenant, channel, aggregatetype, aggregateid, type, payload, headers)
values (:tenant::text, :channel::text, :aggregatetype::text, :aggregateid::text, :type::text, :payload::jsonb, :headers::jsonb)
returning pg_catalog.concat_ws(' ', n.id, n.xid, n.seq) as answer

-- name: append-events
-- Appends many events, in order.
-- Locks: none but its own new rows.
-- Plan: a call.
-- Rows: a string for each, as of append-event.
select a.answer
from pawl.append_events(:tenant::text, :events::jsonb, :wake::boolean) as a(answer)
