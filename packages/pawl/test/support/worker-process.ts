// A worker in a process of its own.

import type { Pawl, PawlOptions, Worker, WorkerOptions } from 'pawl'
import pg from 'pg'
import { inject, onTestFinished } from 'vitest'
import { defineKinds, type KindName, ledgerSql } from '../processes/kinds.ts'
import type { Said, WorkerSpec } from '../processes/protocol.ts'
import { createDatabase, deferred, type TestDatabase } from './database.ts'
import { TalkingProcess } from './talking-process.ts'

/** Leases that end quickly, for tests that wait for that; beats that a busy machine makes three seconds late still come in time. */
export const quick = { lease: 3500, tuning: { beatMs: 200, pollMs: 200 } } as const
/** Leases that do not end while a test runs. */
export const calm = { lease: '60s', tuning: { beatMs: 200, pollMs: 200 } } as const

export interface ProcessOptions {
  readonly env?: NodeJS.ProcessEnv
}

type SpecOptions = { url: string } & Partial<Omit<WorkerSpec, 'pawl' | 'kinds'>> &
  Pick<WorkerSpec, 'kinds'> & { pawl?: Partial<WorkerSpec['pawl']> }

export class WorkerProcess extends TalkingProcess<Said, 'go' | 'stop' | 'enqueue'> {
  constructor({ url, pawl, worker = quick, ...rest }: SpecOptions, { env }: ProcessOptions = {}) {
    const spec: WorkerSpec = { pawl: { databaseUrl: url, ...pawl }, worker, ...rest }
    super(inject('programs').worker, spec, env)
  }

  /** A process whose worker has started. */
  static async start(spec: SpecOptions, options: ProcessOptions = {}): Promise<WorkerProcess> {
    const process = new WorkerProcess(spec, options)
    await process.hears('ready')
    return process
  }

  /** Lets it drain and end. */
  async stop(): Promise<Readonly<Record<string, number>>> {
    this.tell('stop')
    const [said] = await this.hears('stopped')
    await this.ended()
    return said!.metrics
  }
}

/** A database with the effect ledger, dropped after everything that the test started on it has ended. */
export async function createScene(): Promise<TestDatabase> {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  await db.query(ledgerSql)
  return db
}

export interface WorkerHere {
  readonly pawl: Pawl
  readonly worker: Worker
  readonly said: readonly Said[]
  readonly go: () => void
  stop(): Promise<void>
}

/** The same kinds in the test's own process: quicker than another process where that one need not die. */
export async function workHere(
  db: TestDatabase,
  kinds: readonly KindName[],
  options: { pawl?: Partial<PawlOptions>; worker?: WorkerOptions } = {},
): Promise<WorkerHere> {
  const pawl = db.pawl(options.pawl)
  const said: Said[] = []
  const { promise, resolve } = deferred()
  const effects = new pg.Pool({ connectionString: db.url, max: 20 })
  effects.on('error', () => undefined)
  defineKinds(pawl, kinds, { say: (line) => said.push(line), go: promise, effects })
  const worker = pawl.worker(options.worker ?? quick)
  let stopping: Promise<void> | undefined
  const stop = () => {
    stopping ??= worker
      .stop({ grace: 1000 })
      .then(() => effects.end())
      .then(() => pawl.close())
    return stopping
  }
  onTestFinished(stop)
  await worker.start()
  return { pawl, worker, said, go: resolve, stop }
}

/** Every row of the ledger, with how often its job is in it. */
export async function effectsByJob(
  db: TestDatabase,
): Promise<Map<string, { count: number; attempts: number[]; pids: number[] }>> {
  const rows = await db.query<{ job_id: string; count: number; attempts: number[]; pids: number[] }>(
    'select job_id::text, count(*)::integer as count, array_agg(attempt order by attempt) as attempts, array_agg(pid) as pids from effect group by job_id',
  )
  return new Map(rows.map(({ job_id, ...row }) => [job_id, row]))
}

export async function isFinished(db: TestDatabase): Promise<boolean> {
  const [row] = await db.query<{ live: number }>("select count(*)::integer as live from pawl.job where state <> 'dead'")
  return row!.live === 0
}
