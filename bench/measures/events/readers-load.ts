// One load and everybody who reads it.

import pg from 'pg'
import { faultsOf } from '../../../packages/pawl/test/support/log-readers.ts'
import { type Context, setupOf } from '../../harness/context.ts'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Database } from '../../harness/machine/server.ts'
import { percentile } from '../../harness/report/stats.ts'
import type { Sample } from '../../harness/rounds.ts'
import { Child } from '../../harness/system/child.ts'
import type { Written } from '../../harness/system/protocol.ts'
import { gapTimeoutMs } from '../../peers/events/gap-wait.ts'
import { appendLock } from '../../peers/events/writers.ts'

export const readersOnly = ['pawl', 'max(id)', 'snapshot xmin', 'gap wait'] as const
/** With it, the reader by max(id) is right. */
export const withLock = 'append lock'

interface Window {
  readonly from: number
  readonly to: number
}

interface Seen {
  readonly n: number
  readonly at: number
}

interface Load {
  readonly written: readonly Written[]
  readonly stranger: Window
  readonly appender: Window
  readonly durationMs: number
}

const settleMs = 5 * gapTimeoutMs

/** A sample for each reader. */
export function runLoad(
  context: Context,
  { durationMs, isLocked }: { durationMs: number; isLocked: boolean },
): Promise<Map<string, Sample>> {
  const names = isLocked ? ['max(id)'] : readersOnly
  return context.server.withDatabase(async (database) => {
    const writers = new Child({ name: 'writers', module: 'events/writers', ...(isLocked ? { variant: withLock } : {}) })
    const readers = names.map((name) => ({
      name: isLocked ? withLock : name,
      seen: [] as Seen[],
      child: new Child({ name, module: 'events/reader', variant: name }),
    }))
    try {
      for (const child of [writers, ...readers.map((reader) => reader.child)]) await child.prepare(setupOf(context, database))
      for (const { child, seen } of readers) {
        child.onStamp = (n, at) => seen.push({ n, at })
        await child.work({ handler: 'stamp', concurrency: 1 }, Number.POSITIVE_INFINITY)
      }
      const load = await write(writers, database, { durationMs, isLocked })
      await pause(settleMs)
      return new Map(readers.map(({ name, seen }) => [name, sampleOf(seen, load)]))
    } finally {
      await Promise.all([writers, ...readers.map((reader) => reader.child)].map((child) => child.stop()))
    }
  })
}

/** In the second fifth of the time somebody else's transaction idles, in the fourth one that has appended an event. */
async function write(writers: Child, database: Database, options: { durationMs: number; isLocked: boolean }): Promise<Load> {
  const fifthMs = options.durationMs / 5
  const idler = new pg.Client({ connectionString: database.url })
  await idler.connect()
  await idler.query('create table elsewhere (n integer)')
  try {
    const writing = writers.load(options.durationMs)
    writing.catch(() => undefined)
    await pause(fifthMs)
    const stranger = await idle(idler, ['insert into elsewhere values (1)'], fifthMs)
    await pause(fifthMs)
    const data = JSON.stringify({ key: 'idle', version: 1, n: -1 })
    const append = `select pawl.append('Changed', 'thing', 'idle', '${data}')`
    const appender = await idle(idler, options.isLocked ? [appendLock, append] : [append], fifthMs)
    const written = await writing
    written.push({ n: -1, key: 'idle', version: 1, at: appender.to })
    return { written, stranger, appender, durationMs: options.durationMs }
  } finally {
    await idler.end()
  }
}

async function idle(client: pg.Client, statements: readonly string[], durationMs: number): Promise<Window> {
  await client.query('begin')
  for (const statement of statements) await client.query(statement)
  const from = now()
  await pause(durationMs)
  const to = now()
  await client.query('commit')
  return { from, to }
}

function sampleOf(seen: readonly Seen[], { written, stranger, appender, durationMs }: Load): Sample {
  const firstSeen = new Map<number, number>()
  for (const { n, at } of seen) if (!firstSeen.has(n)) firstSeen.set(n, at)
  const byNumber = new Map(written.map((one) => [one.n, one]))
  const faults = faultsOf(
    seen.flatMap(({ n }) => byNumber.get(n) ?? []),
    written,
  )
  // What was committed shortly before may have been held up as well, and what came shortly after waits behind the rest.
  const marginMs = durationMs / 15
  const quiet = written.filter(({ at }) => !isNear(at, stranger, marginMs) && !isNear(at, appender, marginMs))
  const lags = quiet.flatMap(({ n, at }) => (firstSeen.has(n) ? [firstSeen.get(n)! - at] : []))
  return {
    lost: (1_000 * faults.lost) / written.length,
    swapped: (1_000 * faults.swapped) / written.length,
    stranger: deliveredIn(stranger, written, firstSeen),
    appender: deliveredIn(appender, written, firstSeen),
    p50: percentile(lags, 50),
    p99: percentile(lags, 99),
    rate: written.length / (durationMs / 1_000),
  }
}

function deliveredIn(window: Window, written: readonly Written[], firstSeen: ReadonlyMap<number, number>): number {
  const meanwhile = written.filter(({ at, n }) => n >= 0 && at > window.from && at < window.to)
  const delivered = meanwhile.filter(({ n }) => (firstSeen.get(n) ?? Number.POSITIVE_INFINITY) < window.to)
  return meanwhile.length === 0 ? 0 : (100 * delivered.length) / meanwhile.length
}

function isNear(at: number, { from, to }: Window, marginMs: number): boolean {
  return at >= from - marginMs && at <= to + marginMs
}
