-- A projection and its generations.
-- Locks: none.
-- Plan: projection_pkey, cursor_pkey, cursor_position_pkey.
-- No row: nobody has registered it.
select p.kind, p.live_generation, c.generation, c.shards, c.channel, min(c.position)::text as position
from pawl.projection p
left join pawl.cursor_at c on c.tenant = p.tenant and c.name = p.name
where p.tenant = :tenant::text
  and p.name = :name::text
group by p.kind, p.live_generation, c.generation, c.shards, c.channel
order by c.generation
