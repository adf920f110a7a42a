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
