// The main thread's side of the keeper. The keeper is a worker thread with its own connection: it renews the lease of this incarnation,
// takes over from dead ones, and watches whether this thread still turns. What it must know without asking is in shared memory.

import type { Worker as Thread, WorkerOptions as ThreadOptions } from 'node:worker_threads'
import type { LogFields } from '../../config.ts'
import type { DatabaseOptions } from '../../db/driver.ts'
import { cloneable } from '../../db/login.ts'
import { describeError } from '../../errors.ts'
import type { Holder } from '../lease.ts'
import type { Board } from './board.ts'

export interface KeeperData {
  readonly database: DatabaseOptions
  /** A function of the main thread gives it, so it is asked for. */
  readonly asksPassword: boolean
  /** Undefined until there is an incarnation: it is told as a command then. */
  readonly worker: Holder | undefined
  readonly leaseMs: number
  readonly beatMs: number
  readonly lookMs: number
  readonly exitWhenBlocked: boolean
  /** Given to the watch over other incarnations, as it is. */
  readonly limits: unknown
  readonly board: SharedArrayBuffer
  /** Loaded by the thread first; tests install probes with it. */
  readonly probeModule?: string
}

export interface Closed {
  readonly id: number
  readonly reason: string
}

export type KeeperMessage =
  | { readonly type: 'ready' }
  /** A connection of the thread needs the password of now. */
  | { readonly type: 'password' }
  | { readonly type: 'lost'; readonly worker: number }
  | { readonly type: 'closed'; readonly workers: readonly Closed[] }
  /** What a sweep has done: the part that it is about knows what it says. */
  | { readonly type: 'swept'; readonly news: unknown }
  | { readonly type: 'blocked'; readonly blockedMs: number }
  /** A statement of the thread failed and no repetition mends it: to be counted, and logged once a minute. */
  | { readonly type: 'failed' }
  | { readonly type: 'logged'; readonly level: 'warn' | 'error'; readonly fields: LogFields; readonly message: string }

export type KeeperCommand =
  | { readonly type: 'incarnation'; readonly worker: Holder }
  | { readonly type: 'stop' }
  /** null: the password function failed. */
  | { readonly type: 'password'; readonly password: string | null; readonly reason: string }

/** Set by `pawl/testing` before a worker starts. */
export const keeperTesting: {
  probeModule: string | undefined
  /** The thread's module as JavaScript, for a run that starts hundreds of threads: compiling it takes longer than all else that one does. */
  compiledThread: string | undefined
} = { probeModule: undefined, compiledThread: undefined }

export interface KeeperOptions extends Omit<KeeperData, 'board' | 'asksPassword'> {
  /** `compiled`: the thread's module, where a test has compiled it. */
  readonly newThread: (options: ThreadOptions, compiled?: string) => Thread
}

export class Keeper {
  readonly #data: KeeperOptions
  readonly #board: Board
  readonly #onMessage: (message: KeeperMessage) => void
  readonly #onDeath: (error: Error) => void
  #thread: Thread | undefined
  #isStopping = false

  constructor(data: KeeperOptions, board: Board, onMessage: (message: KeeperMessage) => void, onDeath: (error: Error) => void) {
    this.#data = data
    this.#board = board
    this.#onMessage = onMessage
    this.#onDeath = onDeath
  }

  async start(): Promise<void> {
    const { compiledThread, probeModule } = keeperTesting
    const { newThread, ...data } = this.#data
    const { database } = data
    const workerData: KeeperData = {
      ...data,
      database: database.login === undefined ? database : { ...database, login: cloneable(database.login) },
      asksPassword: typeof database.login?.password === 'function',
      board: this.#board.buffer,
      ...(probeModule !== undefined && { probeModule }),
    }
    // A probe module is TypeScript, and shares its modules with the thread.
    const thread = newThread({ workerData, name: 'pawl-keeper' }, probeModule === undefined ? compiledThread : undefined)
    this.#thread = thread
    await new Promise<void>((resolve, reject) => {
      let isReady = false
      let cause: unknown
      thread.on('message', (message: KeeperMessage) => {
        if (message.type === 'password') return void this.#tellPassword(thread)
        if (message.type !== 'ready') return this.#onMessage(message)
        isReady = true
        resolve()
      })
      thread.on('error', (error) => {
        cause = error
      })
      // It comes after an error, too.
      thread.on('exit', (code) => {
        if (this.#thread === thread) this.#thread = undefined
        const death = new Error(`The keeper thread exited with code ${code}.`, cause === undefined ? {} : { cause })
        if (!isReady) reject(death)
        else if (!this.#isStopping) this.#onDeath(death)
      })
    })
    thread.unref()
  }

  async #tellPassword(thread: Thread): Promise<void> {
    const { password } = this.#data.database.login ?? {}
    const command = await Promise.resolve(typeof password === 'function' ? password() : (password ?? null)).then(
      (given): KeeperCommand => ({ type: 'password', password: given, reason: '' }),
      (error: unknown): KeeperCommand => ({ type: 'password', password: null, reason: describeError(error, 500, 0) }),
    )
    thread.postMessage(command)
  }

  incarnation(worker: Holder): void {
    this.#thread?.postMessage({ type: 'incarnation', worker } satisfies KeeperCommand)
  }

  async stop(): Promise<void> {
    this.#isStopping = true
    const thread = this.#thread
    if (thread === undefined) return
    this.#thread = undefined
    const ended = new Promise<void>((resolve) => thread.once('exit', () => resolve()))
    thread.ref()
    thread.postMessage({ type: 'stop' } satisfies KeeperCommand)
    await ended
  }
}
