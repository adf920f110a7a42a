// The slow chores of a worker: partitions for the days ahead, retention of the days behind, expired rows, and kinds that nobody defines.
// Any number of workers may do them at once; each step takes short locks or none.

import { Connection, type DatabaseOptions, type StatementWatch } from '../db/driver.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { isLasting, type LoopWatch } from '../kernel/failures.ts'
import { dropPartition, extendPartitions } from '../kernel/partitions.ts'
import { Service } from '../kernel/service.ts'
import { ScanStart } from './scan-start.ts'

const pruneStatement = statement(import.meta.url, 'prune')
const unknownKindsStatement = statement(import.meta.url, 'unknown-kinds')
const unworkedQueuesStatement = statement(import.meta.url, 'unworked-queues')
const resolveAlertsStatement = statement(import.meta.url, 'resolve-alerts')
const hasDeadAlertsStatement = statement(import.meta.url, 'has-dead-alerts')
const lockDeadAlertsStatement = statement(import.meta.url, 'lock-dead-alerts')
const resolveDeadAlertsStatement = statement(import.meta.url, 'resolve-dead-alerts')
const oldPartitionsStatement = statement(import.meta.url, 'old-partitions')

const everyMs = 10_000
/** Of the rounds, one in so many does the heavier chores: about every quarter of an hour. */
const heavyRounds = 90
/** And one in so many looks at the queues that no worker works: once a minute. */
const everyQueueRounds = 6
/** Well below the ten minutes after which the alert of a kind that was not seen is resolved. */
const fullScanEveryMs = 60_000

export interface MaintenanceOptions {
  readonly database: DatabaseOptions
  /** For short statements: another connection is open only while a chore needs it. */
  readonly engine: Connection
  readonly queues: readonly string[]
  readonly keepDays: number
  readonly signal: AbortSignal
  readonly watch: StatementWatch
  readonly loop: (name: string) => LoopWatch
}

interface Chore {
  readonly name: string
  /** Done in one of so many rounds. */
  readonly rounds: number
  readonly work: () => Promise<unknown>
}

export function maintenance(options: MaintenanceOptions): Service {
  const { database, signal, watch } = options
  const connection = new Connection(database, 'maintenance', { watch })
  const chores = choresOn(connection, options)
  /** Repeated with each round: the alert of one that fails every quarter of an hour would come after half an hour, and resolve in between. */
  const failing = new Set<Chore>()
  let rounds = 0
  const round = async (): Promise<number> => {
    const nth = rounds++
    // One that fails keeps none of the others from being done.
    for (const chore of chores) {
      const { name, rounds: every, work } = chore
      if (signal.aborted || (nth % every !== 1 % every && !failing.has(chore))) continue
      const { succeeded, failed } = options.loop(`maintenance: ${name}`)
      failing.delete(chore)
      await work().then(succeeded, (error: unknown) => {
        if (isLasting(error)) failing.add(chore)
        failed(error)
      })
    }
    await connection.disconnect()
    return everyMs
  }
  return new Service({ round, signal, loop: options.loop('maintenance') })
}

function choresOn(connection: Connection, { engine, queues, keepDays, signal }: MaintenanceOptions): Chore[] {
  const scan = new ScanStart()
  const lookInOwnQueues = async (after: string) => {
    await lookForUnknownKinds(engine, queues, everyMs, { after })
    const [row] = await engine.query<{ reached: string }>("select (pawl.now() - interval '1 minute')::text as reached")
    return row!
  }
  return [
    { name: 'own queues', rounds: 1, work: () => scan.scan(lookInOwnQueues, fullScanEveryMs) },
    {
      name: 'other queues',
      rounds: everyQueueRounds,
      work: async () => lookForUnknownKinds(engine, await unworkedQueues(engine), everyMs, { depth: 100 }),
    },
    {
      name: 'alerts of dead jobs',
      rounds: 1,
      work: async () => {
        if ((await engine.run(hasDeadAlertsStatement)).length > 0) await resolveDeadAlerts(connection)
      },
    },
    { name: 'pruning', rounds: heavyRounds, work: () => prune(connection, signal) },
    { name: 'old days', rounds: heavyRounds, work: () => dropOldPartitions(connection, keepDays) },
    { name: 'new days', rounds: heavyRounds, work: () => extendPartitions(connection) },
  ]
}

export async function lookForUnknownKinds(
  connection: Connection,
  queues: readonly string[],
  ageMs: number,
  { depth = 1000, after = '-infinity' } = {},
): Promise<readonly string[]> {
  const rows = await connection.run<{ kind: string }>(unknownKindsStatement, {
    queues: textsLiteral(queues),
    depth,
    age_ms: ageMs,
    after,
  })
  await connection.run(resolveAlertsStatement)
  return rows.map(({ kind }) => kind)
}

/** Those that are worked are looked at by their own workers. */
export async function unworkedQueues(connection: Connection): Promise<readonly string[]> {
  const rows = await connection.run<{ queue: string }>(unworkedQueuesStatement, { limit: 1000 })
  return rows.map(({ queue }) => queue)
}

/** Jobs that were dead may have been retried or cancelled since. Two statements, because the second must see who died before the lock. */
export async function resolveDeadAlerts(connection: Connection): Promise<void> {
  await connection.transaction(async (run) => {
    const alerts = await run<{ tenant: string; id: string }>(lockDeadAlertsStatement, { limit: 1000 })
    if (alerts.length === 0) return
    await run(resolveDeadAlertsStatement, {
      tenants: textsLiteral(alerts.map(({ tenant }) => tenant)),
      ids: numbersLiteral(alerts.map(({ id }) => id)),
    })
  })
}

/** Removes all of it, in statements of `limit` rows each. */
export async function prune(connection: Connection, signal?: AbortSignal, limit = 10_000): Promise<void> {
  for (;;) {
    const [row] = await connection.run<{ removed: string }>(pruneStatement, { limit })
    if (Number(row?.removed) < limit || signal?.aborted) return
  }
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
