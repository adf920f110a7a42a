// A worker in a process of its own, in the hands of a test: what it says is waited for, and it can be killed, stopped and continued. It
// never outlives its test.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import type { Said, WorkerSpec } from '../processes/protocol.ts'
import { until } from './database.ts'

const root = fileURLToPath(new URL('../../../../', import.meta.url))
const script = fileURLToPath(new URL('../processes/worker.ts', import.meta.url))

/** Leases that end quickly, so that tests need not wait; beats as often as they may be late on a busy machine. */
export const quick = { lease: '1500ms', beatMs: 150, pollMs: 200 } as const

export interface ProcessOptions {
  readonly env?: NodeJS.ProcessEnv
}

type SpecOptions = { url: string } & Partial<Omit<WorkerSpec, 'pawl' | 'kinds'>> & Pick<WorkerSpec, 'kinds'> & { pawl?: Partial<WorkerSpec['pawl']> }

export class WorkerProcess {
  readonly said: Said[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  #hasEnded = false
  #stderr = ''

  constructor({ url, pawl, worker = quick, ...rest }: SpecOptions, options: ProcessOptions = {}) {
    const spec: WorkerSpec = { pawl: { databaseUrl: url, ...pawl }, worker, ...rest }
    this.#child = spawn(process.execPath, ['--import', 'tsx', '--conditions=source', script, JSON.stringify(spec)], {
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

  heard<Event extends Said['event']>(event: Event): Extract<Said, { event: Event }>[] {
    return this.said.filter((said): said is Extract<Said, { event: Event }> => said.event === event)
  }

  /** Waits until it has said this so many times, and gives what it said. */
  hears<Event extends Said['event']>(event: Event, times = 1): Promise<Extract<Said, { event: Event }>[]> {
    return until(
      `a worker process says '${event}' ${times} time(s)`,
      () => {
        const heard = this.heard(event)
        if (heard.length >= times) return heard
        if (this.#hasEnded) throw new Error(`The worker process ended before it said '${event}'. It said ${JSON.stringify(this.said)} ${this.#stderr}`)
        return undefined
      },
      40_000,
    )
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
