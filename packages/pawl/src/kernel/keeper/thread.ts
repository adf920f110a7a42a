// The keeper, in a thread of its own (src/keeper-thread.ts), so that a handler that blocks the main thread does not cost the lease. It polls its
// own row twice a second, answers a question there with a beat, and beats every quarter of the lease. Every k-th poll also watches all others.
// It takes no job from the main thread, except one that blocks it past its time limit.

import { writeSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import type { LogFields } from '../../config.ts'
import { classify, isRetryable, sqlState } from '../../db/classify.ts'
import { Connection } from '../../db/driver.ts'
import { describeError } from '../../errors.ts'
import { Failures } from '../alerts.ts'
import { monotonicMs, threadClockNs } from '../clock.ts'
import { type Holder, leaseStatements, Trouble } from '../lease.ts'
import { probe } from '../probe.ts'
import { engineBackoffMs } from '../retry.ts'
import { Service } from '../service.ts'
import { Board, type Running } from './board.ts'
import type { Closed, KeeperCommand, KeeperData, KeeperMessage } from './keeper.ts'
import { Passwords } from './passwords.ts'

/** The watch over other incarnations, and what follows from what it finds. */
export interface Watcher {
  /** Counts a poll of the own row, and says whether this one also watches the others. */
  isTurn(): boolean
  /** Milliseconds until the next poll. */
  lookInMs(everyMs: number): number
  /** Says how the own incarnation is, and keeps for the sweep what else it saw. */
  look(connection: Connection, worker: Holder): Promise<'open' | 'asked' | null>
  /** Milliseconds until a sweep has something to do, as far as the last poll knows. */
  readonly sweepInMs: number
  /** `running`: what runs on the main thread; null where an end that it had two seconds ago is not stored. */
  sweep(running: readonly Running[] | null): Promise<void>
  /** Takes over from closed incarnations. */
  rescue(workers: readonly number[]): Promise<void>
  timeOut(overdue: { readonly worker: number; readonly jobs: readonly Running[] }): Promise<void>
}

interface WatcherOptions {
  readonly sweeps: Connection
  readonly trouble: Trouble
  readonly limits: unknown
  readonly onClosed: (workers: readonly Closed[]) => void
  readonly onSwept: (news: unknown) => void
}

const blockedMs = 1000
/** A main thread that is still blocked this long after a job of its own was overdue does not come back by itself. */
const patienceMs = 10_000

const data = workerData as KeeperData
const board = new Board(0, data.board)
// A half-open connection gives no error: the lease must outlast a beat that is never answered, however long the other connections wait. A
// server that is merely slow gets a second where the lease allows it.
const answerMs = Math.floor(Math.max(250, data.leaseMs / 4, Math.min(1000, data.leaseMs / 2)))
const passwords = new Passwords(() => tell({ type: 'password' }), Math.min(data.database.connectTimeoutMs, answerMs) / 2)
const given = data.asksPassword
  ? { ...data.database, login: { ...data.database.login, password: () => passwords.ask() } }
  : data.database
const database = {
  ...given,
  queryTimeoutMs: Math.min(given.queryTimeoutMs, answerMs),
  connectTimeoutMs: Math.min(given.connectTimeoutMs, answerMs),
}
// Losing a beat to a crash of the server only shortens the lease, so it need not wait for the disk.
const failures = new Failures({
  logger: { error: (fields, message) => log('error', fields, message) },
  onError: () => tell({ type: 'failed' }),
})
const connection = new Connection(database, 'keeper', { durability: 'relaxed', watch: failures })
const sweeps = new Connection(given, 'sweep', { watch: failures })
const stop = new AbortController()
const trouble = new Trouble()
/** Between two incarnations it watches without a row of its own. */
const nobody: Holder = { id: 0, nonce: '00000000-0000-0000-0000-000000000000' }
let watch: Watcher
let worker: Holder | undefined = data.worker
/** Before the first incarnation the schema may not be there. */
let isOpened = worker !== undefined
let nextBeatMs = 0
let lastLookMs = monotonicMs()
let reportedBlock = 0n
/** Of which turn a job was found overdue, and when first. */
let overdueTurn = 0n
let overdueSinceNs = 0n

function tell(message: KeeperMessage): void {
  parentPort!.postMessage(message)
}

function log(level: 'warn' | 'error', fields: LogFields, message: string): void {
  tell({ type: 'logged', level, fields, message })
}

parentPort!.on('message', (command: KeeperCommand) => {
  if (command.type === 'password') return passwords.told(command)
  if (command.type === 'stop') stop.abort()
  else {
    worker = command.worker
    isOpened = true
    nextBeatMs = 0
  }
  for (const service of [looks, sweepings, turns]) service.wake()
})

async function look(): Promise<void> {
  if (!isOpened) return
  // A thread that stood still cannot tell for how long the others had time to answer.
  if (monotonicMs() - lastLookMs > data.lookMs + 500) trouble.note()
  lastLookMs = monotonicMs()
  const mine = worker
  const state = await (watch.isTurn() ? watch.look(connection, mine ?? nobody) : lookAtOwn(mine))
  sweepings.wake()
  lastLookMs = monotonicMs()
  if (mine === undefined || worker !== mine) return
  if (state === null) lose(mine)
  else if (state === 'asked' || monotonicMs() >= nextBeatMs) await beat(mine)
}

/** Whether the main thread turns, and each end that it had two seconds ago is stored: a job that was done in time is none of those that run. */
function areEndsStored(): boolean {
  const [turnNs, endNs] = [board.lastTurnNs(), board.oldestEndNs()]
  const nowNs = threadClockNs()
  return nowNs - turnNs < BigInt(blockedMs) * 1_000_000n && (endNs === 0n || nowNs - endNs < 2_000_000_000n)
}

async function lookAtOwn(mine: Holder | undefined): Promise<'open' | 'asked' | null> {
  if (mine === undefined) return null
  const [row] = await trouble.run<{ is_asked: boolean }>(connection, leaseStatements.look, { worker: mine.id, nonce: mine.nonce })
  if (row === undefined) return null
  return row.is_asked ? 'asked' : 'open'
}

async function beat(mine: Holder): Promise<void> {
  if (probe.on) await probe.hit('keeper.beat.before', mine.id)
  const startedMs = monotonicMs()
  const rows = await trouble.run(connection, leaseStatements.beat, { worker: mine.id, nonce: mine.nonce, lease_ms: data.leaseMs })
  if (probe.on) await probe.hit('keeper.beat.after', mine.id)
  if (rows.length > 0) nextBeatMs = startedMs + data.beatMs
  else if (worker === mine) lose(mine)
}

function lose(mine: Holder): void {
  worker = undefined
  tell({ type: 'lost', worker: mine.id })
}

/**
 * A main thread that does not turn cannot end its own handlers: past their time limit the keeper does. The handler that blocks it may be another
 * handler, well within its own time, so the incarnation is given up only when the thread still stands.
 */
async function watchMain(): Promise<void> {
  const lastTurn = board.lastTurnNs()
  if (lastTurn === 0n) return
  const stillMs = Number((threadClockNs() - lastTurn) / 1_000_000n)
  if (stillMs < blockedMs) return
  if (reportedBlock !== lastTurn) {
    reportedBlock = lastTurn
    tell({ type: 'blocked', blockedMs: stillMs })
  }
  const overdue = board.overdue(threadClockNs())
  if (overdue.length === 0) return
  if (overdueTurn !== lastTurn) {
    overdueTurn = lastTurn
    overdueSinceNs = threadClockNs()
  }
  const mine = worker
  if (mine !== undefined) await watch.timeOut({ worker: mine.id, jobs: overdue })
  const waitedMs = Number((threadClockNs() - overdueSinceNs) / 1_000_000n)
  const isStill = board.lastTurnNs() === lastTurn && worker === mine
  if (isStill && waitedMs >= Math.min(data.leaseMs, patienceMs)) await giveUp(mine)
}

/** Also after the lease was lost: the process still stands. */
async function giveUp(mine: Holder | undefined): Promise<void> {
  worker = undefined
  try {
    if (mine !== undefined) await closeBlocked(mine)
  } finally {
    if (data.exitWhenBlocked) sayLastWords()
    if (data.exitWhenBlocked) process.kill(process.pid, 'SIGKILL')
  }
}

/** The main thread stands, and with it everything that goes through its streams. */
function sayLastWords(): void {
  const blockedS = Math.round(Number((threadClockNs() - board.lastTurnNs()) / 1_000_000n) / 1000)
  const line = `pawl: this worker process (pid ${process.pid}) exits: a handler has blocked its event loop for ${blockedS} s, past a job's timeout; other workers take over its jobs\n`
  try {
    writeSync(2, line)
  } catch {
    // stderr is closed.
  }
}

/** Whatever the database answers, the main thread hears of it, or it would wait for work under a number that no keeper renews. */
async function closeBlocked(mine: Holder): Promise<void> {
  try {
    await sweeps.run(leaseStatements.close, { worker: mine.id, nonce: mine.nonce, reason: 'blocked past a time limit' })
    await watch.rescue([mine.id])
  } finally {
    tell({ type: 'lost', worker: mine.id })
  }
}

const sayEveryMs = 60_000
/** Which of the loops fail now, since when, and when that was last said. */
const failing = new Set<() => Promise<void>>()
let failingSinceMs = 0
let saidMs = Number.NEGATIVE_INFINITY

function say(error: unknown, work: () => Promise<void>): void {
  const nowMs = monotonicMs()
  if (failing.size === 0) failingSinceMs = nowMs
  failing.add(work)
  if (nowMs - saidMs < sayEveryMs) return
  saidMs = nowMs
  const fields = { error: describeError(error, 500), code: sqlState(error) ?? classify(error) }
  log('warn', fields, 'the keeper cannot reach the database; retrying (logged once a minute)')
}

function sayRecovered(work: () => Promise<void>): void {
  if (!failing.delete(work) || failing.size > 0) return
  log('warn', { awayMs: Math.round(monotonicMs() - failingSinceMs) }, 'the keeper reached the database again')
  saidMs = Number.NEGATIVE_INFINITY
}

/** Runs until the stop. After an error it is told and tried again sooner. */
function serviceOf(name: string, work: () => Promise<void>, waitMs: () => number): Service {
  const { succeeded, failed } = failures.loop(name, sweeps)
  return new Service({
    round: async () => {
      await work()
      return waitMs()
    },
    signal: stop.signal,
    loop: {
      succeeded: () => {
        sayRecovered(work)
        succeeded()
      },
      failed: (error) => {
        failed(error)
        if (isRetryable(error)) say(error, work)
      },
    },
    backoffMs: (_error, count) => Math.min(500, Math.max(50, engineBackoffMs(undefined, count))),
  })
}

// Three, because neither a slow sweep nor the end of a blocked main thread may delay a poll.
const looks = serviceOf('look', look, () => watch.lookInMs(data.lookMs))
const sweepings = serviceOf(
  'sweep',
  () => watch.sweep(areEndsStored() ? board.running() : null),
  () => Math.min(data.lookMs, watch.sweepInMs),
)
const turns = serviceOf('main thread', watchMain, () => data.lookMs)

// Not at the top level of the module: a CommonJS module cannot await there.
async function run(): Promise<void> {
  if (data.probeModule !== undefined) await import(data.probeModule)
  tell({ type: 'ready' })
  await Promise.all([looks.run(), sweepings.run(), turns.run()])
  await Promise.all([connection.close(), sweeps.close()])
  parentPort!.close()
}

/** Called once, by the thread's own module. */
export function keep(watcher: (options: WatcherOptions) => Watcher): void {
  watch = watcher({
    sweeps,
    trouble,
    limits: data.limits,
    onClosed: (workers) => tell({ type: 'closed', workers }),
    onSwept: (news) => tell({ type: 'swept', news }),
  })
  void run()
}
