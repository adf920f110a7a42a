-- Whether the live generation has applied every event of a transaction.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey, event_xid, sequencer_pkey, log_page_pkey from its end. Pages are read only for an event that has its
-- position: for one that has none yet, which is the rule right after a commit, they would be read to their beginning.
-- One row: what is to be waited for; or no row: there is no such projection.
with live as materialized (
  select c.tenant, c.name, c.generation, c.shard, c.shards, c.kind, c.channel, c.position, c.done, c.state, c.holder
  from pawl.projection p
  join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name and c.generation = p.live_generation
  where p.tenant = :tenant::text
    and p.name = :name::text
),
written as materialized (
  select e.seq, e.created_at, e.aggregateid, e.tenant as key_tenant, l.generation, l.shard, l.kind, l.position as reached, l.done,
    pg_visible_in_snapshot(e.xid, s.snapshot) as has_position
  from pawl.event e
  join pawl.log_head s on s.tenant = ''
  join live l on l.shard = ((pawl.event_bucket(e.tenant, e.aggregateid) + 1) * l.shards - 1) / 1024
    and (l.channel is null or l.channel = e.channel)
    and (l.tenant = '' or l.tenant = e.tenant)
  where e.xid = :xid::xid8
),
placed as materialized (
  select w.generation, w.shard, w.key_tenant, w.aggregateid, w.kind, w.reached, w.done, p.position
  from written w
  left join lateral (
    select p.first_position + u.n - 1 as position
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    where w.has_position
      and p.tenant = ''
      and p.from_at <= w.created_at
      and p.to_at >= w.created_at
      and u.xid = :xid::xid8
      and u.seq = w.seq
    order by p.last_position desc
    limit 1
  ) p on true
)
select
  (select string_agg(distinct l.state, ', ') from live l) as states,
  exists (
    select
    from live l
    where not exists (select from pawl.worker w where w.tenant = '' and w.id = l.holder and w.closed_at is null)
  ) as is_unheld,
  -- As of the snapshot that the counts below are of: a commit since then has its status at once, and its events are not counted here.
  case when pg_visible_in_snapshot(:xid::xid8, pg_current_snapshot()) then pg_xact_status(:xid::xid8) else 'in progress' end as status,
  count(*)::integer as events,
  count(*) filter (where p.position is null or (p.position > p.reached and not p.done @> p.position))::integer as unapplied,
  count(*) filter (
    where exists (
      select
      from pawl.parked_event e
      where e.tenant = :tenant::text
        and e.name = :name::text
        and e.generation = p.generation
        and e.shard = p.shard
        and e.key_tenant = p.key_tenant
        and e.key = p.aggregateid
        and e.position = p.position
    )
      or exists (
        select
        from pawl.dirty d
        where d.tenant = :tenant::text
          and d.name = :name::text
          and d.generation = p.generation
          and d.due_at = 'infinity'
          and p.position = any (d.positions)
      )
  )::integer as parked,
  count(*) filter (
    where p.kind = 'state'
      and exists (
        select
        from pawl.dirty d
        where d.tenant = :tenant::text
          and d.name = :name::text
          and d.generation = p.generation
          and p.position = any (d.positions)
      )
  )::integer as dirty
from placed p
having exists (select from live)
