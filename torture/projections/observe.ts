// Checkpoints and what was applied, read in one statement, and so in one snapshot.

import { copiedName, foldedName, handedName } from './handlers.ts'

export interface Observed {
  readonly name: string
  readonly generation: number
  /** By shard. */
  readonly positions: readonly number[]
  readonly applied: number
  readonly parked: number
  /** What the tables of the live generation have, by one and by the other; null for a projection without tables. */
  readonly balanced: number | null
  readonly journalled: number | null
}

export function observe(query: (text: string) => Promise<Record<string, unknown>[]>): Promise<Observed[]> {
  return query(
    `select c.name, c.generation, array_agg(c.position::float8 order by c.shard) as positions,
       (select count(*)::integer from torture.applied a where a.name = c.name and a.generation = c.generation) as applied,
       (select count(*)::integer from pawl.parked_event e where e.name = c.name and e.generation = c.generation) as parked,
       case when c.name = '${foldedName}' and p.live_generation = c.generation then (select coalesce(sum(b.events), 0)::integer from torture.balance b) end as balanced,
       case when c.name = '${foldedName}' and p.live_generation = c.generation then (select count(*)::integer from torture.journal j) end as journalled
     from pawl.cursor_at c
     join pawl.projection p on p.tenant = c.tenant and p.name = c.name
     where c.name not in ('${copiedName}', '${handedName}')
     group by c.name, c.generation, p.live_generation`,
  ) as unknown as Promise<Observed[]>
}
