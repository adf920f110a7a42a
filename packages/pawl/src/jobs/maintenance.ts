// The slow chores of a worker: partitions for the days ahead, retention of past days, and expired rows. Any number of workers may do
// them at once; each step takes short locks or none.

import { Connection, type DatabaseOptions, type StatementWatch } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { isLasting, type LoopWatch } from '../kernel/alerts.ts'
import { dropPartition, extendPartitions, pruneKernel } from '../kernel/partitions.ts'
import { Service } from '../kernel/service.ts'

const showStraysStatement = statement(import.meta.url, 'show-strays')
const oldPartitionsStatement = statement(import.meta.url, 'old-partitions')

const everyMs = 10_000
/** One round in this many does the chores: about every quarter of an hour. */
const choreRounds = 90

export interface MaintenanceOptions {
  readonly database: DatabaseOptions
  /** Undefined in a process without jobs: it only prunes, and leaves the days to those that know how many to keep. */
  readonly keepDays?: number
  readonly signal: AbortSignal
  readonly watch: StatementWatch
  readonly loop: (name: string) => LoopWatch
}

interface Chore {
  readonly name: string
  readonly work: () => Promise<unknown>
}

export function maintenance({ database, signal, watch, keepDays, loop }: MaintenanceOptions): Service {
  // It has a session only in a round that has something to do.
  const connection = new Connection(database, 'maintenance', { watch })
  const chores: readonly Chore[] = [
    { name: 'pruning', work: () => prune(connection, signal) },
    ...(keepDays === undefined
      ? []
      : [
          { name: 'old days', work: () => dropOldPartitions(connection, keepDays) },
          { name: 'new days', work: () => extendPartitions(connection) },
        ]),
  ]
  /** Tried again in each round, not every quarter of an hour: their alert would come late, and end between two tries. */
  const failing = new Set<Chore>()
  let rounds = 0
  const round = async (): Promise<number> => {
    const isTurn = rounds++ % choreRounds === 1
    // One that fails keeps none of the others from being done.
    for (const chore of chores) {
      if (signal.aborted || !(isTurn || failing.has(chore))) continue
      const { succeeded, failed } = loop(`maintenance: ${chore.name}`)
      failing.delete(chore)
      await chore.work().then(succeeded, (error: unknown) => {
        if (isLasting(error)) failing.add(chore)
        failed(error)
      })
    }
    await connection.disconnect()
    return everyMs
  }
  return new Service({ round, signal, loop: loop('maintenance') })
}

/** Before the kernel removes workers that hold nothing: one that does after all is shown to the sweeps. */
export async function prune(connection: Connection, signal?: AbortSignal, limit?: number): Promise<void> {
  await connection.run(showStraysStatement)
  await pruneKernel(connection, signal, limit)
}

/** Removes days older than `keepDays`: detached without blocking writers, then dropped. */
export async function dropOldPartitions(connection: Connection, keepDays: number): Promise<readonly string[]> {
  const rows = await connection.run<{ parent: string; name: string; is_attached: boolean; is_detaching: boolean }>(
    oldPartitionsStatement,
    { keep_days: keepDays },
  )
  const dropped: string[] = []
  for (const { parent, name, is_attached, is_detaching } of rows) {
    const partition = { parent, name, isAttached: is_attached, isDetaching: is_detaching }
    if (await dropPartition(connection, partition)) dropped.push(name)
  }
  return dropped
}
