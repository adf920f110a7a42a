// Starts the process of a system under test and talks to it.

import { type ChildProcess, fork } from 'node:child_process'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { hostIn, ownBuild } from './build.ts'
import type { Answer, FromChild, Progress, Setup, Via, Work, Written } from './protocol.ts'

const root = dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url)))))
const callTimeoutMs = 300_000
const keptOutput = 4_000

export interface System {
  /** As in the report. */
  readonly name: string
  /** The file in peers/. */
  readonly module: string
  readonly variant?: string
  /** Another Node than the one that runs this, where the system needs it. */
  readonly node?: string
  /** The folder of the build that it runs; this tree's unless told. */
  readonly build?: string
}

export class Child {
  readonly #process: ChildProcess
  readonly #name: string
  readonly #waiting = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>()
  #output = ''
  #lastId = 0
  onProgress: (progress: Progress) => void = () => {}
  onStamp: (n: number, at: number) => void = () => {}
  onEnd: (error: Error) => void = () => {}

  constructor({ name, module, variant, node = process.execPath, build = ownBuild }: System) {
    this.#name = name
    const profile =
      process.env.BENCH_PROFILE === module ? ['--cpu-prof', '--cpu-prof-dir', join(root, '.pawl', 'bench', 'profiles')] : []
    this.#process = fork(hostIn(build), variant === undefined ? [module] : [module, variant], {
      cwd: root,
      execPath: node,
      execArgv: profile,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    })
    for (const stream of [this.#process.stdout!, this.#process.stderr!]) {
      stream.on('data', (chunk: Buffer) => {
        this.#output = (this.#output + chunk.toString()).slice(-keptOutput)
      })
    }
    this.#process.on('message', (message: FromChild) => this.#hear(message))
    this.#process.on('error', (error) => this.#end(error.message))
    this.#process.on('exit', (code, signal) => this.#end(`ended with ${signal ?? `code ${code}`}`))
  }

  get #hasEnded(): boolean {
    const { pid, exitCode, signalCode } = this.#process
    return pid === undefined || exitCode !== null || signalCode !== null
  }

  get pid(): number {
    return this.#process.pid ?? -1
  }

  prepare = (setup: Setup): Promise<void> => this.call('prepare', setup)
  fill = (count: number): Promise<void> => this.call('fill', count)
  /** `expect` jobs are this process's share: it tells at once when it has started them. Gives the moment when it began to work. */
  work = (work: Work, expect: number): Promise<number> => this.call('work', work, Number.isFinite(expect) ? expect : -1)
  waitEmpty = (): Promise<number> => this.call('waitEmpty')
  bulk = (count: number, callSize: number): Promise<number> => this.call('bulk', count, callSize)
  oneByOne = (count: number, inFlight: number, via: Via = 'plain'): Promise<number> => this.call('oneByOne', count, inFlight, via)
  enqueue = (n: number, via: Via): Promise<number> => this.call('enqueue', n, via)
  load = (durationMs: number): Promise<Written[]> => this.call('load', durationMs)
  rss = (): Promise<number> => this.call('rss')

  call<Value>(verb: string, ...args: readonly unknown[]): Promise<Value> {
    if (this.#hasEnded) return Promise.reject(this.#error('has ended'))
    const id = ++this.#lastId
    return new Promise<Value>((resolve, reject) => {
      const timer = setTimeout(
        () => this.#settle({ id, error: `no answer to ${verb} within ${callTimeoutMs / 1000} s` }),
        callTimeoutMs,
      )
      const done =
        <T>(how: (value: T) => void) =>
        (value: T) => {
          clearTimeout(timer)
          how(value)
        }
      this.#waiting.set(id, { resolve: done(resolve as (value: unknown) => void), reject: done(reject) })
      this.#process.send({ id, verb, args })
    })
  }

  /** Ends it; a system that does not close by itself within two seconds is killed, since its database goes away anyway. */
  async stop(): Promise<void> {
    if (this.#hasEnded) return
    const ended = new Promise<void>((resolve) => this.#process.once('exit', () => resolve()))
    const deadline = setTimeout(() => this.#process.kill('SIGKILL'), 2_000)
    await this.call('close').catch(() => undefined)
    if (this.#process.connected) this.#process.disconnect()
    await ended
    clearTimeout(deadline)
  }

  kill9(): void {
    this.#process.kill('SIGKILL')
  }

  #hear(message: FromChild): void {
    if ('progress' in message) this.onProgress(message.progress)
    else if ('stamp' in message) this.onStamp(message.stamp, message.at)
    else this.#settle(message)
  }

  #settle({ id, value, error }: Answer): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    if (error === undefined) waiting?.resolve(value)
    else waiting?.reject(this.#error(error))
  }

  #end(how: string): void {
    for (const id of [...this.#waiting.keys()]) this.#settle({ id, error: `its process ${how}` })
    this.onEnd(this.#error(`its process ${how}`))
  }

  #error(what: string): Error {
    const said = this.#output.trim()
    return new Error(`${this.#name}: ${what}${said === '' ? '' : `\n${said}`}`)
  }
}
