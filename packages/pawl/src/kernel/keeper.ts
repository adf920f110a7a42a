// The main thread's side of the keeper. The keeper is a worker thread with its own connection: it renews the lease of this incarnation,
// takes over from dead ones, and watches whether this thread still turns. What it must know without asking is in shared memory.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Worker as Thread, WorkerOptions as ThreadOptions } from 'node:worker_threads'
import type { LogFields } from '../config.ts'
import type { DatabaseOptions } from '../db/driver.ts'
import { cloneable } from '../db/login.ts'
import { describeError, PawlError } from '../errors.ts'
import { threadClockNs } from './clock.ts'
import type { Holder } from './lease.ts'

export interface KeeperData {
  readonly database: DatabaseOptions
  /** A function of the main thread gives it, so it is asked for. */
  readonly asksPassword: boolean
  /** Undefined until there is an incarnation: it is told as a command then. */
  readonly worker: Holder | undefined
  readonly leaseMs: number
  readonly beatMs: number
  readonly lookMs: number
  readonly watchMainMs: number
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
  | { readonly type: 'trouble'; readonly message: string; readonly code: string | undefined }
  /** After trouble: everything of the thread works again. */
  | { readonly type: 'recovered'; readonly awayMs: number }
  /** A statement of the thread failed and no repetition mends it: to be counted, and logged once a minute. */
  | { readonly type: 'failed' }
  | { readonly type: 'logged'; readonly fields: LogFields; readonly message: string }

export type KeeperCommand =
  | { readonly type: 'incarnation'; readonly worker: Holder }
  | { readonly type: 'stop' }
  /** null: the password function failed. */
  | { readonly type: 'password'; readonly password: string | null; readonly reason: string }

/** What runs on the main thread, as far as the keeper must know it. */
export interface Watched extends Running {
  slot: number
  readonly definition: { readonly timeoutMs: number }
}

export interface Running {
  readonly id: string
  readonly fence: string
}

/** Cells before those of the jobs. */
const headCells = 2

/**
 * Shared memory: [0] is the time of the main thread's last turn, [1] since when an end waits to be stored (0: none does); then three cells a
 * running job: id, fence, deadline (0: free).
 */
export class Board {
  readonly buffer: SharedArrayBuffer
  readonly #cells: BigInt64Array
  readonly #free: number[]

  constructor(slots: number, buffer = new SharedArrayBuffer(8 * (headCells + 3 * slots))) {
    this.buffer = buffer
    this.#cells = new BigInt64Array(buffer)
    this.#free = Array.from({ length: (this.#cells.length - headCells) / 3 }, (_, index) => index)
  }

  /** Called again and again by the main thread, with the time for which its oldest end has waited to be stored. */
  turn(oldestEndMs = 0): void {
    const nowNs = threadClockNs()
    Atomics.store(this.#cells, 1, oldestEndMs === 0 ? 0n : nowNs - BigInt(Math.ceil(oldestEndMs)) * 1_000_000n)
    Atomics.store(this.#cells, 0, nowNs)
  }

  /** Since when an end waits to be stored; 0: none does. */
  oldestEndNs(): bigint {
    return Atomics.load(this.#cells, 1)
  }

  lastTurnNs(): bigint {
    return Atomics.load(this.#cells, 0)
  }

  enter(held: Watched): void {
    const slot = this.#free.pop()
    if (slot === undefined) return
    held.slot = slot
    const cell = headCells + slot * 3
    Atomics.store(this.#cells, cell, BigInt(held.id))
    Atomics.store(this.#cells, cell + 1, BigInt(held.fence))
    Atomics.store(this.#cells, cell + 2, threadClockNs() + BigInt(held.definition.timeoutMs) * 1_000_000n)
  }

  leave(held: Watched): void {
    if (held.slot < 0) return
    Atomics.store(this.#cells, headCells + held.slot * 3 + 2, 0n)
    this.#free.push(held.slot)
    held.slot = -1
  }

  overdue(nowNs: bigint): Running[] {
    return this.#jobs((deadlineNs) => deadlineNs < nowNs)
  }

  running(): Running[] {
    return this.#jobs(() => true)
  }

  #jobs(isIt: (deadlineNs: bigint) => boolean): Running[] {
    const found: Running[] = []
    for (let cell = headCells; cell < this.#cells.length; cell += 3) {
      const deadline = Atomics.load(this.#cells, cell + 2)
      if (deadline === 0n || !isIt(deadline)) continue
      const [id, fence] = [Atomics.load(this.#cells, cell), Atomics.load(this.#cells, cell + 1)]
      // The main thread may have woken and put another job here: with the same deadline still, all three are of one job.
      if (Atomics.load(this.#cells, cell + 2) === deadline) found.push({ id: String(id), fence: String(fence) })
    }
    return found
  }
}

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

// ---- passwords

// The keeper's side of a password function. Only the main thread can call it, and the keeper must connect also while that one stands still or
// the function fails: then the password that it was told last has to do.

interface Told {
  readonly password: string | null
  readonly reason: string
}

export class Passwords {
  readonly #send: () => void
  readonly #patienceMs: number
  #waiting: { readonly told: Promise<Told>; readonly tell: (told: Told) => void } | undefined
  #last: string | undefined

  /** `patienceMs`: well within the time that a connection may take to open. */
  constructor(send: () => void, patienceMs: number) {
    this.#send = send
    this.#patienceMs = patienceMs
  }

  /** One question at a time, whoever asks. */
  async ask(): Promise<string> {
    this.#waiting ??= this.#question()
    const told = await Promise.race([this.#waiting.told, sleep(this.#patienceMs, undefined, { ref: false })])
    const password = told?.password ?? this.#last
    if (password !== undefined) return password
    throw new PawlError('PAWL_UNAVAILABLE', told?.reason ?? 'The main thread did not return the password in time.')
  }

  told(told: Told): void {
    this.#last = told.password ?? this.#last
    this.#waiting?.tell(told)
    this.#waiting = undefined
  }

  #question(): { told: Promise<Told>; tell: (told: Told) => void } {
    let tell!: (told: Told) => void
    const told = new Promise<Told>((resolve) => {
      tell = resolve
    })
    this.#send()
    return { told, tell }
  }
}
