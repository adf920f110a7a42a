// A worker in a process of its own, in the hands of a test: what it says is waited for, and it can be killed, stopped and continued. It
// never outlives its test.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pawl, PawlOptions, Worker, WorkerOptions } from 'pawl'
import pg from 'pg'
import { inject, onTestFinished } from 'vitest'
import { defineKinds, type KindName, ledgerSql } from '../processes/kinds.ts'
import type { Said, WorkerSpec } from '../processes/protocol.ts'
import { createDatabase, deferred, type TestDatabase, until } from './database.ts'

const root = fileURLToPath(new URL('../../../../', import.meta.url))

/** Leases that end quickly, for tests that wait for that; late beats of a busy machine still come in time. */
export const quick = { lease: 2500, beatMs: 200, pollMs: 200 } as const
/** Leases that do not end while a test runs. */
export const calm = { lease: '60s', beatMs: 200, pollMs: 200 } as const

export interface ProcessOptions {
  readonly env?: NodeJS.ProcessEnv
}

type SpecOptions = { url: string } & Partial<Omit<WorkerSpec, 'pawl' | 'kinds'>> &
  Pick<WorkerSpec, 'kinds'> & { pawl?: Partial<WorkerSpec['pawl']> }

/** The kinds of line that carry this event, also where several events share one shape. */
type SaidAs<Event extends Said['event']> = Said extends infer One
  ? One extends { event: infer Names }
    ? Event extends Names
      ? One
      : never
    : never
  : never

export class WorkerProcess {
  readonly said: Said[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  #hasEnded = false
  #stderr = ''

  constructor({ url, pawl, worker = quick, ...rest }: SpecOptions, options: ProcessOptions = {}) {
    const spec: WorkerSpec = { pawl: { databaseUrl: url, ...pawl }, worker, ...rest }
    this.#child = spawn(process.execPath, [inject('programs').worker, JSON.stringify(spec)], {
      cwd: root,
      stdio: 'pipe',
      env: { ...process.env, ...options.env },
    })
    this.#ended = once(this.#child, 'close').then(() => {
      this.#hasEnded = true
    })
    this.#child.stdin!.on('error', () => undefined)
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-20_000)
    })
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.said.push(JSON.parse(line) as Said))
    onTestFinished(() => this.kill())
  }

  /** A process whose worker has started. */
  static async start(spec: SpecOptions, options: ProcessOptions = {}): Promise<WorkerProcess> {
    const process = new WorkerProcess(spec, options)
    await process.hears('ready')
    return process
  }

  get pid(): number {
    return this.#child.pid!
  }

  get signal(): NodeJS.Signals | null {
    return this.#child.signalCode
  }

  get stderr(): string {
    return this.#stderr
  }

  heard<Event extends Said['event']>(event: Event): SaidAs<Event>[] {
    return this.said.filter((said) => said.event === event) as unknown as SaidAs<Event>[]
  }

  /** Waits until it has said this so many times, and gives what it said. */
  async hears<Event extends Said['event']>(event: Event, times = 1): Promise<SaidAs<Event>[]> {
    try {
      await until(
        `a worker process says '${event}' ${times} time(s)`,
        () => this.heard(event).length >= times || this.#hasEnded,
        40_000,
      )
      if (this.heard(event).length < times)
        throw new Error(`The worker process ended before it said '${event}' ${times} time(s).`)
      return this.heard(event)
    } catch (cause) {
      throw new Error(`${String(cause)} It said ${JSON.stringify(this.said.slice(-20))}, and on stderr: ${this.#stderr}`, {
        cause,
      })
    }
  }

  tell(word: 'go' | 'stop' | 'enqueue'): void {
    this.#child.stdin!.write(`${word}\n`)
  }

  /** SIGKILL, which also ends a stopped process; returns when it is gone and everything it said was heard. */
  async kill(): Promise<void> {
    if (!this.#hasEnded) this.#child.kill('SIGKILL')
    await this.#ended
  }

  pause(): void {
    this.#child.kill('SIGSTOP')
  }

  resume(): void {
    this.#child.kill('SIGCONT')
  }

  async ended(): Promise<NodeJS.Signals | null> {
    await this.#ended
    return this.signal
  }

  /** Lets it drain and end. */
  async stop(): Promise<Readonly<Record<string, number>>> {
    this.tell('stop')
    const [said] = await this.hears('stopped')
    await this.#ended
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
  const worker = pawl.jobs.worker(options.worker ?? quick)
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
