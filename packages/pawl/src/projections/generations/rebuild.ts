// Rebuilding: another generation is filled from the first event beside the live one, in tables of its own. When both stand at one position
// their rows are compared, and one transaction makes the new one live: it renames the tables. A projection writes nothing but those, so
// nothing of a rebuild gets out.

import { setTimeout as sleep } from 'node:timers/promises'
import { isConflict, isRetryable } from '../../db/classify.ts'
import type { Db } from '../../db/db.ts'
import type { Pool } from '../../db/driver.ts'
import { statement, textsLiteral } from '../../db/statement.ts'
import { PawlError } from '../../errors.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { probe } from '../../kernel/probe.ts'
import { read, retrying, retryingCall } from '../../kernel/retry.ts'
import { logBounds } from '../cursor.ts'
import type { Defined } from '../definition.ts'
import { audit, cursorsOf, inTransaction, type Target } from '../operator.ts'
import type { Act, Comparison } from '../types.ts'
import { readProjection } from './register.ts'
import { compareTables, generationTable, parseTable, quoteIdentifier, tableOf } from './tables.ts'

/** sql/ of projections: one folder for all statements on its tables. */
const projections = new URL('../', import.meta.url).href

const statements = {
  add: statement(projections, 'add-generation'),
  hold: statement(projections, 'hold-generations'),
  still: statement(projections, 'still-generations'),
  unhold: statement(projections, 'unhold-generations'),
  unrefreshed: statement(projections, 'unrefreshed'),
  lockProjection: statement(projections, 'lock-projection'),
  lock: statement(projections, 'lock-generations'),
  switchCursors: statement(projections, 'switch-cursors'),
  switchProjection: statement(projections, 'switch-projection'),
  remove: statement(projections, 'remove-generation'),
  dependents: statement(projections, 'table-dependents'),
  belongings: statement(projections, 'table-belongings'),
  holders: statement(projections, 'table-holders'),
} as const

/** A hold ends by itself, so that whoever asked for it and died does not stop the live generation for ever. */
const holdMs = 60_000
const pollMs = 25
/** Shorter than any statement may take: who waits for longer begins again. */
const patience = "set local lock_timeout = '2s'"
const patienceMs = 30_000

interface Pair {
  readonly shard: number
  readonly live: string
  readonly other: string
  readonly hold_at: string
}

export async function rebuild(
  pool: Pool,
  target: Target,
  /** The highest generation that this process declares. */
  definition: Defined | undefined,
  act: Act,
): Promise<{ generation: number }> {
  const known = await retryingCall(() => readProjection(pool, target))
  const live = known[0]?.live_generation
  if (live === undefined)
    throw new PawlError(
      'PAWL_NOT_FOUND',
      `There is no projection '${target.name}'. A worker that defines it creates it when it starts.`,
    )
  if (definition === undefined || definition.generation <= live)
    throw new PawlError(
      'PAWL_CONFIG',
      `Generation ${live} of '${target.name}' is live. To rebuild, define it in this process with generation: ${live + 1} or higher.`,
    )
  if (!definition.isPure)
    throw new PawlError(
      'PAWL_CONFIG',
      `'${target.name}' cannot be rebuilt: a ${definition.kind} without tables has nothing to rebuild.`,
    )
  const liveShards = known.find((each) => each.generation === live)?.shards
  if (liveShards !== definition.shards)
    throw new PawlError(
      'PAWL_CONFIG',
      `Generation ${definition.generation} of '${target.name}' must have ${liveShards} shard(s) like the live one, got ${definition.shards}.`,
    )
  const { before } = await retryingCall(() => logBounds(pool))
  if (before > 0)
    throw new PawlError(
      'PAWL_WRONG_STATE',
      `'${target.name}' cannot be rebuilt: events up to position ${before} have been removed. Keep events for longer if you want to rebuild; to continue without them, resume it with from: 'oldest'.`,
    )
  const { generation } = definition
  await inTransaction(pool, async (tx, query) => {
    const { tenant, name, shards, kind, channel, maxLagMs } = definition
    const made = await tx.run(statements.add, { tenant, name, generation, shards, kind, channel, max_lag_ms: maxLagMs })
    if (made.length === 0) throw new PawlError('PAWL_WRONG_STATE', `Generation ${generation} of '${name}' already exists.`)
    for (const table of definition.tables) {
      await assertMovable(tx, table.name)
      const [live, other] = [tableOf(table.name, generation, true), tableOf(table.name, generation, false)]
      await query(`create table ${other} (like ${live} including all)`)
      // Runners may be of another role than the one that rebuilds.
      const belongings = await belongingsOf(tx, { live, other, name: other, old: live })
      await handOver(
        query,
        table.name,
        belongings.filter(({ is_access }) => is_access),
      )
    }
    await audit(tx, target, 'rebuild', act, { generation })
  })
  return { generation }
}

interface Belonging {
  readonly is_access: boolean
  readonly sql: string
}

function belongingsOf(runs: Db, names: Readonly<Record<'live' | 'other' | 'name' | 'old', string>>): Promise<Belonging[]> {
  return runs.run<Belonging>(statements.belongings, names)
}

/** Views and foreign keys follow a table when it is renamed: they would go on with the old generation. */
async function assertMovable(runs: Db, table: string): Promise<void> {
  const rows = await runs.run<{ dependent: string }>(statements.dependents, { table: tableOf(table, 1, true) })
  if (rows.length === 0) return
  throw new PawlError(
    'PAWL_WRONG_STATE',
    `The table ${table} has dependents that a switch would lose or leave on the old generation: ${rows.map(({ dependent }) => dependent).join(', ')}. Drop them first, and let readers use the table.`,
  )
}

export async function compare(
  pool: Pool,
  target: Target,
  definition: Defined,
  options: { generation: number; timeout: number },
): Promise<Comparison> {
  return whileHeld(pool, target, definition, options, async () =>
    inTransaction(pool, async (runs) => {
      if ((await lockLevel(runs, target, options.generation)) === undefined) return undefined
      return compareTables(runs, definition)
    }),
  )
}

export async function switchTo(
  pool: Pool,
  target: Target,
  definition: Defined,
  options: Act & { generation: number; mayDiffer: boolean; timeout: number },
): Promise<Comparison> {
  const { generation } = options
  return whileHeld(pool, target, definition, options, () =>
    inTransaction(pool, async (runs, query) => {
      const live = await lockLevel(runs, target, generation)
      if (live === undefined) return undefined
      const comparison = await compareTables(runs, definition)
      if (!comparison.isEqual && options.mayDiffer !== true) return comparison
      await makeLive(runs, query, { target, definition, live, generation })
      await audit(runs, target, 'switch', options, { from: live, to: generation, isEqual: comparison.isEqual })
      if (probe.on) await probe.hit('projections.switch.before_commit', generation)
      return comparison
    }),
  )
}

export async function rollBack(
  pool: Pool,
  target: Target,
  definition: Defined,
  options: Act & { generation: number },
): Promise<void> {
  const { generation } = options
  const rollback = () =>
    inTransaction(pool, async (runs, query) => {
      await query(patience)
      const live = await lockBoth(runs, target, generation)
      await makeLive(runs, query, { target, definition, live, generation })
      await audit(runs, target, 'rollback', options, { from: live, to: generation })
    })
  await whileStill(pool, target, definition, () =>
    retryLocked(pool, { target, definition, generation }, rollback, monotonicMs() + patienceMs),
  )
}

export async function retire(
  pool: Pool,
  target: Target,
  definition: Defined,
  options: Act & { generation: number },
): Promise<void> {
  const { generation } = options
  const drop = () =>
    inTransaction(pool, async (runs, query) => {
      await query(patience)
      await lockBoth(runs, target, generation)
      for (const { name } of definition.tables) await query(`drop table if exists ${tableOf(name, generation, false)}`)
      await runs.run(statements.remove, { ...target, generation })
      await audit(runs, target, 'retire', options, { generation })
    })
  await whileStill(pool, target, definition, () =>
    retryLocked(pool, { target, definition, generation }, drop, monotonicMs() + patienceMs),
  )
}

/** Refreshes share a lock of the cursor's row, and those that begin pass whoever waits for it. So none begins. */
async function whileStill<T>(pool: Pool, target: Target, { kind }: Defined, work: () => Promise<T>): Promise<T> {
  if (kind !== 'state') return work()
  try {
    await read(pool, statements.still, { ...target, hold_ms: holdMs })
    return await work()
  } finally {
    await unhold(pool, target)
  }
}

/** A hold that outlives a short outage would stop the live generation for the rest of its minute. */
async function unhold(runs: Db, target: Target): Promise<void> {
  await retrying(() => runs.run(statements.unhold, { ...target }), { triesMax: 8 }).catch(() => undefined)
}

/** Locks every cursor of both generations, in one order, and answers which is live. Until the commit no handler of either is in a transaction. */
async function lockBoth(runs: Db, target: Target, generation: number): Promise<number> {
  await runs.run(statements.lockProjection, { ...target })
  const rows = await runs.run<{ generation: number; live_generation: number }>(statements.lock, { ...target, generation })
  const live = rows[0]?.live_generation
  if (live === undefined || !rows.some((row) => row.generation === generation)) throw gone(target, generation)
  if (live === generation)
    throw new PawlError('PAWL_WRONG_STATE', `Generation ${generation} of '${target.name}' is already live.`)
  return live
}

/**
 * The live generation, when both stand at one position and have refreshed everything. A hold may have ended before they were locked, and what was
 * read before the lock may be older than the last move.
 */
async function lockLevel(runs: Db, target: Target, generation: number): Promise<number | undefined> {
  const live = await lockBoth(runs, target, generation)
  const places = async (of: number) => (await cursorsOf(runs, target, of)).map(({ position }) => position)
  if ((await places(live)).join() !== (await places(generation)).join()) return undefined
  return (await unrefreshed(runs, target, generation)) === undefined ? live : undefined
}

interface Mark {
  readonly generation: number
  readonly entity: string
}

async function unrefreshed(runs: Db, target: Target, generation: number): Promise<Mark | undefined> {
  const [mark] = await runs.run<Mark>(statements.unrefreshed, { ...target, generation })
  return mark
}

interface Switch {
  readonly target: Target
  readonly definition: Defined
  readonly live: number
  readonly generation: number
}

async function makeLive(
  runs: Db,
  query: (text: string) => Promise<unknown>,
  { target, definition, live, generation }: Switch,
): Promise<void> {
  await query(patience)
  for (const { name } of definition.tables) await exchangeTables(runs, query, { name, live, generation })
  await runs.run(statements.switchCursors, { ...target, live, generation })
  await runs.run(statements.switchProjection, { ...target, generation })
}

/** What belongs to the table that readers know goes with the name. */
async function exchangeTables(
  runs: Db,
  query: (text: string) => Promise<unknown>,
  { name, live, generation }: { readonly name: string; readonly live: number; readonly generation: number },
): Promise<void> {
  const [known, old, other] = [tableOf(name, live, true), tableOf(name, live, false), tableOf(name, generation, false)]
  const { table } = parseTable(name)
  // Locked before it is looked at: nobody adds a view or a grant in between.
  await query(`lock table ${known}, ${other} in access exclusive mode`)
  await assertMovable(runs, name)
  const belongings = await belongingsOf(runs, { live: known, other, name: known, old })
  await query(`alter table ${known} rename to ${quoteIdentifier(generationTable(table, live))}`)
  await query(`alter table ${other} rename to ${quoteIdentifier(table)}`)
  await handOver(query, name, belongings)
}

async function handOver(
  query: (text: string) => Promise<unknown>,
  name: string,
  belongings: readonly Belonging[],
): Promise<void> {
  for (const { sql } of belongings) {
    await query(sql).catch((error: unknown) => {
      if (isRetryable(error)) throw error
      const why = error instanceof Error ? error.message : String(error)
      throw new PawlError('PAWL_WRONG_STATE', `The switch would lose a setting of the table ${name}: '${sql}' failed: ${why}`, {
        cause: error,
      })
    })
  }
}

/** Lets both generations come to one position and stand there while the work is done; the work answers undefined when they do not. */
async function whileHeld<T>(
  pool: Pool,
  target: Target,
  definition: Defined,
  { generation, timeout }: { readonly generation: number; readonly timeout: number },
  work: () => Promise<T | undefined>,
): Promise<T> {
  const deadlineMs = monotonicMs() + timeout
  await retryingCall(() => cursorsOf(pool, target, generation))
  const values = { ...target, generation, hold_ms: holdMs }
  try {
    for (;;) {
      const pairs = await read<Pair>(pool, statements.hold, values)
      if (pairs.length === 0) throw gone(target, generation)
      const behind = pairs.find((pair) => pair.live !== pair.hold_at || pair.other !== pair.hold_at)
      if (probe.on) await probe.hit('projections.rebuild.held', pairs)
      const mark = behind === undefined ? await retryingCall(() => unrefreshed(pool, target, generation)) : undefined
      if (behind === undefined && mark === undefined) {
        const result = await retryLocked(pool, { target, definition, generation }, work, deadlineMs)
        if (result !== undefined) return result
      }
      if (monotonicMs() > deadlineMs) throw notLevel(target, behind ?? pairs[0]!, mark)
      await sleep(pollMs)
    }
  } finally {
    await unhold(pool, target)
  }
}

/** Readers keep the tables, and handlers the cursors, for as long as their transactions last; what waits for them is tried again. */
async function retryLocked<T>(pool: Pool, of: Omit<Switch, 'live'>, work: () => Promise<T>, deadlineMs: number): Promise<T> {
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (!isConflict(error)) throw error
      if (monotonicMs() > deadlineMs) throw await stillRead(pool, of, error)
      await sleep(pollMs)
    }
  }
}

interface Holder {
  readonly pid: number
  readonly name: string
  readonly state: string | null
  readonly seconds: number
}

async function stillRead(
  pool: Pool,
  { target, definition, generation }: Omit<Switch, 'live'>,
  cause: unknown,
): Promise<PawlError> {
  const tables = definition.tables.flatMap(({ name }) => [tableOf(name, generation, true), tableOf(name, generation, false)])
  const holders = await read<Holder>(pool, statements.holders, { tables: textsLiteral(tables) })
  const sessions = holders.map(({ pid, name, state, seconds }) => `${pid} (${name || 'unnamed'}, ${state}, for ${seconds} s)`)
  const [longest] = holders
  const next =
    longest === undefined
      ? 'They have just ended: try again.'
      : `Sessions that hold them: ${sessions.join(', ')}. End their transactions, for example with select pg_terminate_backend(${longest.pid}), and try again.`
  return new PawlError(
    'PAWL_TIMED_OUT',
    `The tables of '${target.name}' stayed locked by transactions that did not end, so nothing was changed. ${next}`,
    { cause, details: { holders } },
  )
}

function gone(target: Target, generation: number): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `There is no generation ${generation} of '${target.name}'.`)
}

function notLevel(target: Target, pair: Pair, mark: Mark | undefined): PawlError {
  const next = 'Check that a running worker defines it and that none is paused, and try again when its lag is small.'
  const where =
    mark === undefined
      ? `did not reach the same position in time: shard ${pair.shard} is at ${pair.live} in the live one and at ${pair.other} in the other`
      : `did not finish refreshing in time: generation ${mark.generation} still has entities to refresh, such as '${mark.entity}'`
  return new PawlError('PAWL_TIMED_OUT', `The generations of '${target.name}' ${where}. ${next}`, { details: { ...pair } })
}
