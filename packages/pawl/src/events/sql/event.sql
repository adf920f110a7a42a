-- name: erase
-- Removes payload and headers of one key's events, with a row in pawl.audit. Their positions stay.
-- Locks: those events' rows.
-- Plan: scans every partition: an index for it would slow every append.
-- One row: the number of events.
select g.events as erased
from (
  select pawl.erase_events(:tenant::text, :aggregatetype::text, :aggregateid::text) as events
  offset 0
) g
cross join lateral pawl.write_audit(:tenant::text, :actor::text, 'events.erase', :aggregatetype::text || ' ' || :aggregateid::text, :reason::text,
  jsonb_build_object('aggregatetype', :aggregatetype::text, 'key', :aggregateid::text, 'events', g.events)) n

-- name: leftovers
-- Partitions of events that an earlier run of retention detached and did not drop.
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
-- Removes old events from the open-ended first partition, which is never dropped: those up to the position that retention has checked.
-- Locks: those rows.
-- Plan: event_first and log_page in full. The first is empty, except for events whose created_at was set by hand.
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
-- Appends one event. An insert, because a call of pawl.append_event cost 9 to 17 µs more of server CPU. It has no operators, and its functions name
-- their schema, because it also runs under a caller's search path.
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
-- Rows: one string per event, as of append-event.
select a.answer
from pawl.append_events(:tenant::text, :events::jsonb, :wake::boolean) as a(answer)
