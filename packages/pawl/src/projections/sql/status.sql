-- How every projection and sink is.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey.
-- Rows: one per cursor.
select c.tenant, c.name, c.kind, c.generation, p.live_generation = c.generation as is_live, c.shard, c.shards, c.state, c.reason,
  c.position::text as position, greatest(0, s.position - c.position)::text as lag, w.id as holder, c.attempts, c.last_error, c.moved_at,
  (
    select count(*)::integer
    from pawl.parked_key k
    where k.tenant = c.tenant
      and k.name = c.name
      and k.generation = c.generation
      and k.shard = c.shard
  ) as parked_keys,
  case
    when c.kind = 'state' and c.shard = 0 then (
      select count(distinct d.entity)::integer
      from pawl.dirty d
      where d.tenant = c.tenant
        and d.name = c.name
        and d.generation = c.generation
    )
    else 0
  end as dirty
from pawl.projection p
join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name
join pawl.log_head s on s.tenant = ''
left join pawl.worker w on w.tenant = '' and w.id = c.holder and w.closed_at is null
where p.tenant = :tenant::text
  and (:name::text is null or p.name = :name::text)
order by c.name, c.generation, c.shard
