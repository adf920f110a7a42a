// The worker processes of `pawl dev`: started, restarted when they die, and stopped.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { extname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { StopReport } from 'pawl'
import { ChildFailure } from '../failure.ts'
import type { JobLine } from './job-lines.ts'
import type { FromWorker, ToWorker, WorkerTask } from './messages.ts'
import { sumOf } from './running.ts'

export interface PoolEvents {
  readonly onJob: (line: JobLine, number: number) => void
  readonly onNotice: (text: string) => void
  /** The name of a process in a notice. */
  readonly nameOf?: (number: number) => string
}

const restartMs = 500
/** TypeScript beside TypeScript, JavaScript beside JavaScript. */
const module = fileURLToPath(new URL(`./worker-process${extname(import.meta.url)}`, import.meta.url))

interface Member {
  readonly number: number
  child: ChildProcess
  report: StopReport | undefined
}

export class WorkerPool {
  readonly #members: Member[] = []
  readonly #task: Omit<WorkerTask, 'number'>
  readonly #events: PoolEvents
  #isStopping = false
  /** The kinds and projections of each process: all load the same modules. */
  runs = ''

  constructor(task: Omit<WorkerTask, 'number'>, events: PoolEvents) {
    this.#task = task
    this.#events = events
  }

  get pids(): number[] {
    return this.#members.map(({ child }) => child.pid!)
  }

  #nameOf(number: number): string {
    return this.#events.nameOf?.(number) ?? `worker ${number}`
  }

  /** Resolves when each has started; rejects with what one of them could not do, or when the signal ends them before. */
  async start(count: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const end = (): void => void this.stop()
    signal.addEventListener('abort', end)
    const started = Array.from({ length: count }, async (_, index) => {
      const child = forked(this.#task.database)
      const member: Member = { number: index + 1, child, report: undefined }
      this.#members.push(member)
      await this.#begin(member)
    })
    try {
      await Promise.all(started)
    } catch (error) {
      await this.stop()
      throw error
    } finally {
      signal.removeEventListener('abort', end)
    }
  }

  /** Lets running jobs finish. Call insist() to give them up. */
  async stop(): Promise<StopReport> {
    this.#isStopping = true
    await Promise.all(
      this.#members.map(async ({ child }) => {
        if (child.exitCode !== null || child.signalCode !== null) return
        const ended = once(child, 'exit')
        send(child, { type: 'stop' })
        await ended
      }),
    )
    return sumOf(this.#members.flatMap(({ report }) => report ?? []))
  }

  insist(): void {
    for (const { child } of this.#members) send(child, { type: 'abandon' })
  }

  async #begin(member: Member): Promise<void> {
    const { child, number } = member
    await new Promise<void>((resolve, reject) => {
      child.on('message', (message: FromWorker) => {
        if (message.type === 'started') {
          this.runs = message.runs
          resolve()
        } else if (message.type === 'failed') reject(new ChildFailure(message.failure))
        else if (message.type === 'job') this.#events.onJob(message.line, number)
        else if (message.type === 'notice') this.#events.onNotice(`${this.#nameOf(number)}: ${message.text}`)
        else member.report = message.report
      })
      child.on('error', reject)
      child.on('exit', (code, signal) => {
        reject(new Error(`${this.#nameOf(number)} exited before it started (${signal ?? `exit code ${code}`}).`))
        void this.#ended(member, code, signal)
      })
      send(child, { type: 'start', task: { ...this.#task, number } })
    })
  }

  async #ended(member: Member, code: number | null, signal: NodeJS.Signals | null): Promise<void> {
    if (this.#isStopping) return
    this.#events.onNotice(
      `${this.#nameOf(member.number)} (pid ${member.child.pid}) exited (${signal ?? `exit code ${code}`}); restarting it`,
    )
    await sleep(restartMs)
    if (this.#isStopping) return
    member.child = forked(this.#task.database)
    await this.#begin(member).then(
      () => this.#events.onNotice(`${this.#nameOf(member.number)} restarted (pid ${member.child.pid})`),
      (error: unknown) =>
        this.#events.onNotice(`${this.#nameOf(member.number)}: ${error instanceof Error ? error.message : String(error)}`),
    )
  }
}

/** The modules of the user read DATABASE_URL for themselves. */
function forked(database: WorkerTask['database']): ChildProcess {
  const env = database === undefined ? process.env : { ...process.env, DATABASE_URL: database.databaseUrl }
  return fork(module, [], { env, execArgv: process.execArgv, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
}

function send(child: ChildProcess, message: ToWorker): void {
  if (child.connected) child.send(message, () => undefined)
}
