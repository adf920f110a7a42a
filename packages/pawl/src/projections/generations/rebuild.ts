// Rebuilding: another generation is filled from the first event beside the live one, in tables of its own. When both stand at one position
// their rows are compared, and one transaction makes the new one live: it renames the tables. A projection writes nothing but those, so
// nothing of a rebuild gets out.

import { setTimeout as sleep } from 'node:timers/promises'
import { isConflict, isRetryable } from '../../db/classify.ts'
import type { Db } from '../../db/db.ts'
import type { Pool } from '../../db/driver.ts'
import { statement, textsLiteral } from '../../db/statement.ts'
import type { Transaction } from '../../db/transaction.ts'
import { PawlError } from '../../errors.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { probe } from '../../kernel/probe.ts'
import { read, retrying, retryingCall } from '../../kernel/retry.ts'
import { logBounds } from '../cursor.ts'
import type { Defined } from '../definition.ts'
import { audit, cursorsOf, inTransaction, type Target } from '../operator.ts'
import type { Act, Comparison } from '../types.ts'
import { readProjection, rowOf } from './register.ts'
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

/** A hold expires, so that a caller that dies does not stop the live generation forever. */
const holdMs = 60_000
const pollMs = 25
/** How long a lock is waited for: less than a statement may take. Then the transaction begins again. */
const patience = "set local lock_timeout = '2s'"
/** How long it begins again, before the caller is told who holds the lock. */
const patienceMs = 30_000

interface Shard {
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
  await inTransaction(pool, async (tx) => {
    const made = await tx.run(statements.add, rowOf(definition))
    if (made.length === 0) throw new PawlError('PAWL_WRONG_STATE', `Generation ${generation} of '${target.name}' already exists.`)
    for (const table of definition.tables) {
      await assertMovable(tx, table.name)
      const [live, other] = [tableOf(table.name, generation, true), tableOf(table.name, generation, false)]
      await tx.query(`create table ${other} (like ${live} including all)`)
      // Runners may be of another role than the one that rebuilds.
      const belongings = await belongingsOf(tx, { live, other, name: other, old: live })
      const access = belongings.filter(({ is_access }) => is_access)
      await handOver(tx, table.name, access)
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

/** The live generation and another one; `definition` names the tables of both. */
export interface Pair {
  readonly target: Target
  readonly definition: Defined
  readonly generation: number
}

export function compare(pool: Pool, pair: Pair, timeoutMs: number): Promise<Comparison> {
  return whileHeld(pool, pair, timeoutMs, (tx) => compareTables(tx, pair.definition))
}

export function switchTo(
  pool: Pool,
  pair: Pair,
  { timeoutMs, mayDiffer, ...act }: Act & { readonly timeoutMs: number; readonly mayDiffer: boolean },
): Promise<Comparison> {
  const { target, definition, generation } = pair
  return whileHeld(pool, pair, timeoutMs, async (tx, live) => {
    const comparison = await compareTables(tx, definition)
    if (!comparison.isEqual && !mayDiffer) return comparison
    await makeLive(tx, pair, live)
    await audit(tx, target, 'switch', act, { from: live, to: generation, isEqual: comparison.isEqual })
    if (probe.on) await probe.hit('projections.switch.before_commit', generation)
    return comparison
  })
}

export async function rollBack(pool: Pool, pair: Pair, act: Act): Promise<void> {
  await whileStill(pool, pair, async (tx, live) => {
    await makeLive(tx, pair, live)
    await audit(tx, pair.target, 'rollback', act, { from: live, to: pair.generation })
  })
}

export async function retire(pool: Pool, { target, definition, generation }: Pair, act: Act): Promise<void> {
  await whileStill(pool, { target, definition, generation }, async (tx) => {
    for (const { name } of definition.tables) await tx.query(`drop table if exists ${tableOf(name, generation, false)}`)
    await tx.run(statements.remove, { ...target, generation })
    await audit(tx, target, 'retire', act, { generation })
  })
}

/**
 * Does the work with both generations locked, again while others hold them. Refreshes share a lock of the cursor's row, and those that begin pass a
 * transaction that waits for it. So none begins.
 */
async function whileStill(pool: Pool, pair: Pair, work: (tx: Transaction, live: number) => Promise<void>): Promise<void> {
  const { target, definition, generation } = pair
  const locked = () =>
    inTransaction(pool, async (tx) => {
      await tx.query(patience)
      await work(tx, await lockBoth(tx, target, generation))
    })
  const isState = definition.kind === 'state'
  try {
    if (isState) await read(pool, statements.still, { ...target, hold_ms: holdMs })
    await retryLocked(pool, pair, locked, monotonicMs() + patienceMs)
  } finally {
    if (isState) await unhold(pool, target)
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

async function makeLive(tx: Transaction, { target, definition, generation }: Pair, live: number): Promise<void> {
  await tx.query(patience)
  for (const { name } of definition.tables) await exchangeTables(tx, name, live, generation)
  await tx.run(statements.switchCursors, { ...target, live, generation })
  await tx.run(statements.switchProjection, { ...target, generation })
}

/** Gives the name that readers use to the table of another generation, with all that belongs to the table that had it. */
async function exchangeTables(tx: Transaction, name: string, live: number, generation: number): Promise<void> {
  const [known, old, other] = [tableOf(name, live, true), tableOf(name, live, false), tableOf(name, generation, false)]
  const { table } = parseTable(name)
  // Locked first, so that no view or grant is added between the check and the rename.
  await tx.query(`lock table ${known}, ${other} in access exclusive mode`)
  await assertMovable(tx, name)
  const belongings = await belongingsOf(tx, { live: known, other, name: known, old })
  await tx.query(`alter table ${known} rename to ${quoteIdentifier(generationTable(table, live))}`)
  await tx.query(`alter table ${other} rename to ${quoteIdentifier(table)}`)
  await handOver(tx, name, belongings)
}

async function handOver(tx: Transaction, name: string, belongings: readonly Belonging[]): Promise<void> {
  for (const { sql } of belongings) {
    await tx.query(sql).catch((error: unknown) => {
      if (isRetryable(error)) throw error
      const why = error instanceof Error ? error.message : String(error)
      throw new PawlError('PAWL_WRONG_STATE', `The switch would lose a setting of the table ${name}: '${sql}' failed: ${why}`, {
        cause: error,
      })
    })
  }
}

/** Does the work when both generations are at one position, locked there. */
async function whileHeld<T>(
  pool: Pool,
  pair: Pair,
  timeoutMs: number,
  work: (tx: Transaction, live: number) => Promise<T>,
): Promise<T> {
  const { target, generation } = pair
  const deadlineMs = monotonicMs() + timeoutMs
  await retryingCall(() => cursorsOf(pool, target, generation))
  const locked = () =>
    inTransaction(pool, async (tx) => {
      const live = await lockLevel(tx, target, generation)
      return live === undefined ? undefined : work(tx, live)
    })
  try {
    for (;;) {
      const shards = await read<Shard>(pool, statements.hold, { ...target, generation, hold_ms: holdMs })
      if (shards.length === 0) throw gone(target, generation)
      const behind = shards.find((shard) => shard.live !== shard.hold_at || shard.other !== shard.hold_at)
      if (probe.on) await probe.hit('projections.rebuild.held', shards)
      const mark = behind === undefined ? await retryingCall(() => unrefreshed(pool, target, generation)) : undefined
      if (behind === undefined && mark === undefined) {
        const result = await retryLocked(pool, pair, locked, deadlineMs)
        if (result !== undefined) return result
      }
      if (monotonicMs() > deadlineMs) throw notLevel(target, behind ?? shards[0]!, mark)
      await sleep(pollMs)
    }
  } finally {
    await unhold(pool, target)
  }
}

/** Readers keep the tables, and handlers the cursors, for as long as their transactions last; what waits for them is tried again. */
async function retryLocked<T>(pool: Pool, pair: Pair, work: () => Promise<T>, deadlineMs: number): Promise<T> {
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (!isConflict(error)) throw error
      if (monotonicMs() > deadlineMs) throw await stillRead(pool, pair, error)
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

async function stillRead(pool: Pool, { target, definition, generation }: Pair, cause: unknown): Promise<PawlError> {
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

function notLevel(target: Target, shard: Shard, mark: Mark | undefined): PawlError {
  const next = 'Check that a running worker defines it and that none is paused, and try again when its lag is small.'
  const where =
    mark === undefined
      ? `did not reach the same position in time: shard ${shard.shard} is at ${shard.live} in the live one and at ${shard.other} in the other`
      : `did not finish refreshing in time: generation ${mark.generation} still has entities to refresh, such as '${mark.entity}'`
  return new PawlError('PAWL_TIMED_OUT', `The generations of '${target.name}' ${where}. ${next}`, { details: { ...shard } })
}
