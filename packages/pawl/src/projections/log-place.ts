// Whether the log is still the one that a cursor has read. Positions alone do not tell: after a restore they may belong to other events. So
// a cursor keeps the id of the event at its place, and stops for a person if another one is there.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { type ReadLogOptions, readLog } from '../events/read-log.ts'
import { cursorStatements, type HeldCursor, type Place, placeOf } from './cursor.ts'
import type { World } from './world.ts'

const boundsStatement = statement(import.meta.url, 'log-bounds')

export interface LogBounds {
  /** The position before the first that is kept. */
  readonly before: number
  readonly head: number
  readonly generation: number
}

export async function logBounds(db: Db): Promise<LogBounds> {
  const [row] = await db.run<{ before: string; head: string; generation: number }>(boundsStatement, {})
  return { before: Number(row!.before), head: Number(row!.head), generation: row!.generation }
}

/** What of the log a cursor reads. */
export function filterOf(cursor: HeldCursor): Pick<ReadLogOptions, 'channel' | 'tenant' | 'shard'> {
  const { channel, tenant } = cursor.definition
  return {
    ...(channel === null ? {} : { channel }),
    // The cursors of the empty tenant span all.
    ...(tenant === '' ? {} : { tenant }),
    ...(cursor.shards === 1 ? {} : { shard: { index: cursor.shard, of: cursor.shards } }),
  }
}

/** A filtered cursor that met nothing of its own stores its place this often; retention and lag go by it. */
export const passEveryMs = 1000
export const passEvents = 20_000

/** The place of this position: the event there, ours or not. None if the log is of another generation than what was read up to it. */
export async function placeAt(world: World, position: number, generation?: number): Promise<Place | undefined> {
  const read = await readLog(world.reader, { after: position - 1, limit: 1 })
  const [event] = read.events
  return event === undefined || (generation ?? read.generation) !== read.generation ? undefined : placeOf(event)
}

/** false: it is not, and the cursor is latched. */
export async function assertSameLog(world: World, cursor: HeldCursor): Promise<boolean> {
  const { position, eventId } = cursor.place
  const { before, head } = await logBounds(world.reader)
  if (position > head) {
    await latch(
      world,
      cursor,
      `The cursor is at position ${position}, but the log ends at ${head}: the log is older than the cursor.`,
    )
    return false
  }
  if (position < before) {
    await latch(
      world,
      cursor,
      `Events ${position + 1} to ${before} have been removed from the log. To continue without them, resume it with from: 'oldest'.`,
    )
    return false
  }
  // What retention has removed cannot be compared.
  if (eventId === null || position === before) return true
  const place = await placeAt(world, position)
  if (place === undefined || place.eventId === eventId) return true
  await latch(
    world,
    cursor,
    `At position ${position} the log has event ${place.eventId}, but the cursor read ${eventId} there: the log lost events from before that position and has grown since.`,
  )
  return false
}

export async function latch(world: World, cursor: HeldCursor, reason: string): Promise<void> {
  const rows = await world.engine.run(cursorStatements.latch, { ...cursor.fencedKey, position: cursor.place.position, reason })
  // Lost, stopped already, or not where we thought: after a failover its row is as old as the log. Whoever asked looks at the row.
  if (rows.length === 0) return
  const { name, generation } = cursor.definition
  world.config.logger.error({ name, generation, shard: cursor.shard, reason }, 'a cursor is latched; resume or rebuild it')
  world.events.emit('cursor.latched', { name, generation, shard: cursor.shard, reason })
}
