// Tables that are partitioned by days: room for the days ahead, and the removal of old ones. No insert depends on it: the first and the last
// partition of each are open-ended. Rows of the kernel that are past their retention go in the same maintenance.

import { sqlState } from '../db/classify.ts'
import type { Connection } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { resolveAlert } from './alerts.ts'

const dayTablesStatement = statement(import.meta.url, 'day-tables')
const lastUsedStatement = statement(import.meta.url, 'last-partition-used')
const isLastUsedStatement = statement(import.meta.url, 'is-last-day-used')
const extendStatement = statement(import.meta.url, 'extend-day-partitions')

/** Another process is at it, or a stranger's transaction locks the table: the next round tries again. */
export function isLater(error: unknown): boolean {
  return ['55P03', '55000', '42P01', '57014', '40P01'].includes(sqlState(error) ?? '')
}

/** Makes room ahead in every table that is partitioned by days. Returns the tables where there was something to do. */
export async function extendPartitions(connection: Connection): Promise<string[]> {
  const extended: string[] = []
  for (const { name } of await connection.run<{ name: string }>(dayTablesStatement)) {
    const [row] = await connection.run<{ is_used: boolean }>(isLastUsedStatement, { name })
    if (row!.is_used) await connection.run(lastUsedStatement, { name })
    try {
      const [answer] = await connection.run<{ did: boolean }>(extendStatement, { name })
      if (answer!.did) extended.push(name)
    } catch (error) {
      if (isLater(error)) continue
      throw error
    }
    await connection.run(resolveAlert, { code: 'partition.last', subject: name })
  }
  return extended
}

export interface Partition {
  readonly parent: string
  readonly name: string
  readonly isAttached: boolean
  /** An earlier removal was interrupted. */
  readonly isDetaching: boolean
}

/** Takes a partition from its table without blocking writers. Waits for transactions that use the table, up to the connection's lock timeout. */
export async function detachPartition(
  connection: Connection,
  { parent, name, isAttached, isDetaching }: Partition,
): Promise<boolean> {
  if (!isAttached) return true
  try {
    await connection.query(
      `alter table pawl.${parent} detach partition pawl.${name} ${isDetaching ? 'finalize' : 'concurrently'}`,
    )
    return true
  } catch (error) {
    if (isLater(error)) return false
    throw error
  }
}

export async function dropPartition(connection: Connection, partition: Partition): Promise<boolean> {
  if (!(await detachPartition(connection, partition))) return false
  await connection.query(`drop table if exists pawl.${partition.name}`)
  return true
}

// ---- rows past their retention

const pruneStatement = statement(import.meta.url, 'prune')

/** Removes all of it, in statements of `limit` rows each. */
export async function pruneKernel(connection: Connection, signal?: AbortSignal, limit = 10_000): Promise<void> {
  for (;;) {
    const [row] = await connection.run<{ removed: string }>(pruneStatement, { limit })
    if (Number(row?.removed) < limit || signal?.aborted) return
  }
}
