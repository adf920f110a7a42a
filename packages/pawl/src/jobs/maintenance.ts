// The slow chores of a worker: partitions for the days ahead, retention of the days behind, expired rows, and kinds that nobody defines.
// Any number of workers may do them at once; each step takes short locks or none.

import { setTimeout as sleep } from 'node:timers/promises'
import { sqlState } from '../db/classify.ts'
import { Connection, type DatabaseOptions } from '../db/driver.ts'
import { statement, textsLiteral } from '../db/statement.ts'

const pruneStatement = statement(import.meta.url, 'prune')
const unknownKindsStatement = statement(import.meta.url, 'unknown-kinds')
const resolveAlertsStatement = statement(import.meta.url, 'resolve-alerts')
const oldPartitionsStatement = statement(import.meta.url, 'old-partitions')

const tables = ['job_history', 'job_attempt'] as const
const daysAhead = 7

const everyMs = 10_000
/** Of the rounds, one in so many does the heavier chores: about every quarter of an hour. */
const heavyRounds = 90

export interface MaintenanceOptions {
  readonly database: DatabaseOptions
  readonly queues: readonly string[]
  readonly keepDays: number
  readonly signal: AbortSignal
  readonly onTrouble: (error: unknown) => void
}

export async function maintain({ database, queues, keepDays, signal, onTrouble }: MaintenanceOptions): Promise<void> {
  const connection = new Connection(database, 'maintenance')
  for (let round = 0; !signal.aborted; round++) {
    try {
      await lookForUnknownKinds(connection, queues, everyMs)
      if (round % heavyRounds === 1) {
        await prune(connection)
        await extendPartitions(connection)
        await dropOldPartitions(connection, keepDays)
      }
    } catch (error) {
      onTrouble(error)
    }
    await sleep(everyMs, undefined, { signal }).catch(() => undefined)
  }
  await connection.close()
}

export async function lookForUnknownKinds(
  connection: Connection,
  queues: readonly string[],
  ageMs: number,
): Promise<readonly string[]> {
  const rows = await connection.run<{ kind: string }>(unknownKindsStatement, {
    queues: textsLiteral(queues),
    depth: 1000,
    age_ms: ageMs,
  })
  await connection.run(resolveAlertsStatement)
  return rows.map(({ kind }) => kind)
}

export async function prune(connection: Connection): Promise<void> {
  await connection.run(pruneStatement, { limit: 10_000 })
}

/** Makes room ahead: the open-ended last partition holds nothing yet, so it moves back without blocking anyone. */
export async function extendPartitions(connection: Connection): Promise<void> {
  for (const table of tables) {
    const [row] = await connection.query<{ is_short: boolean; last_is_empty: boolean }>(
      `select to_regclass('pawl.${table}_' || to_char((pawl.now() at time zone 'UTC')::date + ${daysAhead - 3}, 'YYYYMMDD')) is null as is_short,
         not exists (select from pawl.${table}_last) as last_is_empty`,
    )
    if (!row?.is_short || !row.last_is_empty) continue
    try {
      await connection.query(`alter table pawl.${table} detach partition pawl.${table}_last concurrently`)
    } catch (error) {
      // Somebody else is at it, or a stranger's transaction holds the table: the open-ended partition serves until the next time.
      if (['55P03', '55000', '42P01', '57014', '40P01'].includes(sqlState(error) ?? '')) continue
      throw error
    }
    await connection.query(`drop table pawl.${table}_last`)
    await connection.query(`select pawl.add_day_partitions('${table}', (pawl.now() at time zone 'UTC')::date, ${daysAhead})`)
  }
}

/** Removes days older than `keepDays`: detached without blocking writers, then dropped. */
export async function dropOldPartitions(connection: Connection, keepDays: number): Promise<readonly string[]> {
  const rows = await connection.run<{ parent: string; name: string; is_attached: boolean }>(oldPartitionsStatement, {
    keep_days: keepDays,
  })
  const dropped: string[] = []
  for (const { parent, name, is_attached } of rows) {
    try {
      if (is_attached) await connection.query(`alter table pawl.${parent} detach partition pawl.${name} concurrently`)
      await connection.query(`drop table if exists pawl.${name}`)
      dropped.push(name)
    } catch (error) {
      if (!['55P03', '55000', '42P01', '57014', '40P01'].includes(sqlState(error) ?? '')) throw error
    }
  }
  return dropped
}
