// The keeper itself, in a thread of its own, so that a handler that blocks the main thread does not lose the process its lease. Every
// beat it renews, then looks for others' ended leases. It never touches what the main thread works on, except to take away a job that
// blocked the main thread past its time limit.

import { writeSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { classify, isRetryable, sqlState } from '../db/classify.ts'
import { Connection } from '../db/driver.ts'
import { numbersLiteral, statement } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import { threadClockNs } from '../kernel/clock.ts'
import { Failures } from '../kernel/failures.ts'
import { leaseStatements, livenessLockClass } from '../kernel/lease.ts'
import { probe } from '../kernel/probe.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { Wakeup } from '../kernel/signal.ts'
import { Board, type KeeperCommand, type KeeperData, type KeeperMessage, type SweptJob } from './keeper.ts'

const rescueStatement = statement(import.meta.url, 'rescue')
const timeOutStatement = statement(import.meta.url, 'time-out')

/** Besides right after a closing, everything is swept this often. */
const sweepEveryMs = 5000
const blockedMs = 1000
/** A main thread that has stood still for so long after a job of its own was overdue does not come back by itself. */
const patienceMs = 10_000

const data = workerData as KeeperData
const board = new Board(0, data.board)
// A half-open connection gives no error: the lease must outlast a beat that is never answered, however long the other connections wait. A
// server that is merely slow gets a second where the lease allows it.
const answerMs = Math.floor(Math.max(250, data.leaseMs / 4, Math.min(1000, data.leaseMs / 2)))
const database = {
  ...data.database,
  queryTimeoutMs: Math.min(data.database.queryTimeoutMs, answerMs),
  connectTimeoutMs: Math.min(data.database.connectTimeoutMs, answerMs),
}
// Losing a beat to a crash of the server only shortens the lease, so it need not wait for the disk.
const watch = new Failures({
  logger: { error: (fields, message) => tell({ type: 'logged', fields, message }) },
  onError: () => tell({ type: 'failed' }),
})
const connection = new Connection(database, 'keeper', { durability: 'relaxed', watch })
const sweeps = new Connection(data.database, 'sweep', { watch })
const commands = new Wakeup()
const beats = new Wakeup()
let worker: number | undefined = data.worker
let isStopping = false
let lastSweepNs = 0n
let reportedBlock = 0n
/** Of which turn a job was found overdue, and when first. */
let overdueTurn = 0n
let overdueSinceNs = 0n

function tell(message: KeeperMessage): void {
  parentPort!.postMessage(message)
}

parentPort!.on('message', (command: KeeperCommand) => {
  if (command.type === 'stop') isStopping = true
  else worker = command.worker
  commands.fire()
  beats.fire()
})

async function beat(): Promise<void> {
  if (worker === undefined) return
  if (probe.on) await probe.hit('keeper.beat.before', worker)
  const mine = worker
  const rows = await connection.run(leaseStatements.beat, { worker: mine, lease_ms: data.leaseMs })
  if (probe.on) await probe.hit('keeper.beat.after', mine)
  if (rows.length > 0 || worker !== mine) return
  worker = undefined
  tell({ type: 'lost', worker: mine })
}

async function sweep(): Promise<void> {
  const closed = await sweeps.run<{ id: number; reason: string }>(leaseStatements.closeDead, { lock_class: livenessLockClass })
  if (probe.on && closed.length > 0) await probe.hit('keeper.rescue.closed', closed)
  if (closed.length > 0) tell({ type: 'closed', workers: closed })
  const isDue = threadClockNs() - lastSweepNs > BigInt(sweepEveryMs) * 1_000_000n
  if (closed.length === 0 && !isDue) return
  const isClean = await rescue()
  await timeOut([])
  // Rows that were locked just now are tried again at the next beat.
  if (isClean && closed.length === 0) lastSweepNs = threadClockNs()
}

async function rescue(): Promise<boolean> {
  for (;;) {
    const jobs = await sweeps.run<SweptJob>(rescueStatement, { limit: 1000, max_crashes: data.maxCrashes })
    if (probe.on && jobs.length > 0) await probe.hit('keeper.rescue.after', jobs)
    if (jobs.length > 0) tell({ type: 'rescued', jobs })
    if (jobs.length < 1000) return jobs.length === 0
  }
}

async function timeOut(overdue: readonly { id: string; fence: string }[]): Promise<void> {
  const jobs = await sweeps.run<SweptJob>(timeOutStatement, {
    worker: worker ?? 0,
    ids: numbersLiteral(overdue.map(({ id }) => id)),
    fences: numbersLiteral(overdue.map(({ fence }) => fence)),
    limit: 1000,
    max_attempts: data.maxAttempts,
  })
  if (jobs.length > 0) tell({ type: 'timed out', jobs })
}

/**
 * A main thread that does not turn cannot end its own handlers: past their time limit the keeper does. Whoever blocks it may be another
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
  if (mine !== undefined) await timeOut(overdue)
  const waitedMs = Number((threadClockNs() - overdueSinceNs) / 1_000_000n)
  const isStill = board.lastTurnNs() === lastTurn && worker === mine
  if (isStill && waitedMs >= Math.min(data.leaseMs, patienceMs)) await giveUp(mine)
}

/** Also after the lease was lost: the process still stands. */
async function giveUp(mine: number | undefined): Promise<void> {
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
  const line = `pawl: this worker process (pid ${process.pid}) ends itself: a handler has blocked its event loop for ${blockedS} s, past a job's timeout; other workers take its jobs\n`
  try {
    writeSync(2, line)
  } catch {
    // Nobody reads it.
  }
}

/** Whatever the database answers, the main thread hears of it, or it would wait for work under a number that nobody renews. */
async function closeBlocked(mine: number): Promise<void> {
  try {
    await sweeps.run(leaseStatements.close, { worker: mine, reason: 'blocked past a time limit' })
    await rescue()
  } finally {
    tell({ type: 'lost', worker: mine })
  }
}

/** Runs until the stop, at every beat; trouble is told and tried again sooner. */
async function everyBeat(work: () => Promise<void>, wakeup: Wakeup): Promise<void> {
  for (let failed = 0; !isStopping; ) {
    try {
      await work()
      failed = 0
    } catch (error) {
      failed++
      if (isRetryable(error))
        tell({ type: 'trouble', message: describeError(error, 500), code: sqlState(error) ?? classify(error) })
    }
    await wakeup.wait(failed === 0 ? data.beatMs : Math.min(500, Math.max(50, engineBackoffMs(undefined, failed))))
  }
}

if (data.probeModule !== undefined) await import(data.probeModule)
tell({ type: 'ready' })
// Two loops, because a sweep that waits for a lock must not hold up a beat.
await Promise.all([everyBeat(beat, beats), everyBeat(() => watchMain().then(sweep), commands)])
await Promise.all([connection.close(), sweeps.close()])
parentPort!.close()
