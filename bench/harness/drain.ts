// A full queue, worked off by one or more processes.

import { type Context, setupOf } from './context.ts'
import { cpuMicros } from './machine/cpu.ts'
import type { Database } from './machine/server.ts'
import { Child, type System } from './system/child.ts'
import type { Handler, Progress } from './system/protocol.ts'

export interface DrainOptions {
  readonly jobs: number
  readonly handler?: Handler
  readonly processes?: number
  /** false: leave the table as the jobs before left it. */
  readonly isVacuumed?: boolean
}

export interface Drained {
  readonly rate: number
  readonly seconds: number
  /** The share of the jobs that each process ran. */
  readonly shares: readonly number[]
  /** Microseconds of CPU for a job, of the server and of the processes that ran the handlers. */
  readonly cpu: { readonly server: number; readonly client: number }
}

export const handlersPerProcess = 20

/** In a database of its own. */
export function drainFresh(context: Context, system: System, options: DrainOptions): Promise<Drained> {
  return context.server.withDatabase((database) => drainOnce(context, system, database, options))
}

/** Fills the queue and drains it with new processes. */
export async function drainOnce(context: Context, system: System, database: Database, options: DrainOptions): Promise<Drained> {
  const children = Array.from({ length: options.processes ?? 1 }, () => new Child(system))
  try {
    // One after the other, since not every peer's installation bears company.
    for (const child of children) await child.prepare(setupOf(context, database))
    await children[0]!.fill(options.jobs)
    // As autovacuum would leave the table a little later: statistics known, so that no plan depends on luck.
    if (options.isVacuumed !== false) await database.query('vacuum analyze')
    return await drainFilled(context, children, options)
  } finally {
    await Promise.all(children.map((child) => child.stop()))
  }
}

/** From the start of the first handler until the store says that nothing is left. */
export async function drainFilled(
  context: Context,
  children: readonly Child[],
  { jobs, handler = 'noop' }: DrainOptions,
): Promise<Drained> {
  const servers = [context.server.pid, ...(typeof context.redis === 'string' ? [] : [context.redis.pid])]
  const readCpu = () => ({ server: cpuMicros(servers), client: cpuMicros(children.map(({ pid }) => pid)) })
  const cpuBefore = readCpu()
  const latest = new Map<Child, Progress>()
  const allStarted = new Promise<void>((resolve, reject) => {
    for (const child of children) {
      child.onEnd = reject
      child.onProgress = (progress) => {
        latest.set(child, progress)
        if ([...latest.values()].reduce((sum, { handled }) => sum + handled, 0) >= jobs) resolve()
      }
    }
  })
  allStarted.catch(() => undefined)
  const expect = children.length === 1 ? jobs : Number.POSITIVE_INFINITY
  await Promise.all(children.map((child) => child.work({ handler, concurrency: handlersPerProcess }, expect)))
  await withDeadline(
    allStarted,
    () => `only ${[...latest.values()].map(({ handled }) => handled).join(' + ')} of ${jobs} jobs were started`,
  )
  const end = await children[0]!.waitEmpty()
  const first = Math.min(...[...latest.values()].filter(({ handled }) => handled > 0).map(({ firstAt }) => firstAt))
  const seconds = (end - first) / 1_000
  const cpuAfter = readCpu()
  const cpu = {
    server: (cpuAfter.server - cpuBefore.server) / jobs,
    client: (cpuAfter.client - cpuBefore.client) / jobs,
  }
  const handled = children.map((child) => latest.get(child)?.handled ?? 0)
  return { rate: jobs / seconds, seconds, shares: handled.map((count) => count / jobs), cpu }
}

const deadlineMs = 240_000

async function withDeadline(wait: Promise<void>, message: () => string): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${message()} within ${deadlineMs / 1_000} s`)), deadlineMs)
  })
  await Promise.race([wait, late]).finally(() => clearTimeout(timer))
}
