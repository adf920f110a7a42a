// A log full of events, read by one process from its beginning to its end.

import { type Context, setupOf } from '../../harness/context.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Handler } from '../../harness/system/protocol.ts'

const deadlineMs = 240_000

/** Events per second. */
export function rateThrough(context: Context, system: System, handler: Handler, events: number): Promise<number> {
  return context.server.withDatabase(async (database) => {
    const child = new Child(system)
    try {
      await child.prepare(setupOf(context, database))
      await child.fill(events)
      // As autovacuum would leave the tables a little later: statistics known, so that no plan depends on luck.
      await database.query('vacuum analyze')
      return events / (await readThrough(child, handler, events))
    } finally {
      await child.stop()
    }
  })
}

/** Seconds from the moment when the reader is ready until its store says that it has come to the end. */
export async function readThrough(child: Child, handler: Handler, events: number): Promise<number> {
  const allHandled = handledAll(child, events)
  const from = await child.work({ handler, concurrency: 1 }, events)
  await allHandled
  return ((await child.waitEmpty()) - from) / 1_000
}

function handledAll(child: Child, events: number): Promise<void> {
  const all = new Promise<void>((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new Error(`not all of ${events} events were handled within ${deadlineMs / 1_000} s`)),
      deadlineMs,
    )
    const end = (how: () => void) => {
      clearTimeout(timer)
      how()
    }
    child.onEnd = (error) => end(() => reject(error))
    child.onProgress = ({ handled }) => {
      if (handled >= events) end(resolve)
    }
  })
  // Whoever waits is told; until then nobody need hear of it.
  all.catch(() => undefined)
  return all
}
