// The breaker. A deploy that cannot apply its events would park key after key; after so many within a while the generation is paused instead.

import { statement } from '../db/statement.ts'
import type { Defined } from './definition.ts'
import type { World } from './world.ts'

const tripStatement = statement(import.meta.url, 'trip-breaker')

/** Called after a key or an entity was parked. What is counted are rows, so a process that dies before this leaves it to the next parking. */
export async function tripBreaker(world: World, definition: Defined): Promise<void> {
  const { tenant, name, generation, breaker } = definition
  const [row] = await world.engine.run<{ reason: string }>(tripStatement, {
    tenant,
    name,
    generation,
    keys: breaker.keys,
    within_ms: breaker.within,
  })
  if (row !== undefined) world.config.logger.error({ name, generation, reason: row.reason }, 'the breaker paused a projection')
}
