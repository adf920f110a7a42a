// A worker process of `pawl dev`, and of `pawl worker` for jobs that must run alone. Its parent stops it, and it stops by itself when its parent is gone.

import { createPawl, type Logger, type Pawl, stderrLogger } from 'pawl'
import { assertSameDatabase } from '../database.ts'
import { defineDemo } from '../dev/demo.ts'
import { failureOf } from '../failure.ts'
import { oneLine } from '../terminal.ts'
import { watchJobs } from './job-lines.ts'
import { fieldsText, isJobLine, type LogFields } from './logger.ts'
import type { FromWorker, ToWorker, WorkerTask } from './messages.ts'
import { Running } from './running.ts'
import { endOnUncaught } from './uncaught.ts'
import { loadModules } from './user-modules.ts'

const tell = (message: FromWorker): void => {
  if (process.connected) process.send?.(message)
}

let pawl: Pawl | undefined
let running: Running | undefined
endOnUncaught(() => running?.worker)
let insist!: () => void
const insisted = new Promise<void>((resolve) => {
  insist = resolve
})
let isStopping = false

// The parent has the same streams, and it is the parent that stops when they are closed.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined)
// Ctrl-C in a terminal reaches every process of the group, but it is the parent that decides.
process.on('SIGINT', () => undefined)
process.on('SIGTERM', () => void stop(20_000))
process.on('disconnect', () => void stop(5000))
process.on('message', (message: ToWorker) => {
  if (message.type === 'start') start(message.task).catch((error: unknown) => void fail(error))
  else if (message.type === 'abandon') insist()
  else void stop(task?.graceMs ?? 20_000)
})

let task: WorkerTask | undefined

async function start(given: WorkerTask): Promise<void> {
  task = given
  Object.assign(stderrLogger, logger)
  const loaded = await loadModules(given.modules)
  pawl =
    loaded.theirs ??
    createPawl({
      ...given.database,
      applicationName: given.applicationName ?? `pawl dev worker ${given.number}`,
    })
  if (loaded.theirs !== undefined && given.database !== undefined) assertSameDatabase(loaded.theirs, given.database.databaseUrl)
  if (given.modules.length === 0) defineDemo(pawl)
  else await loaded.define(pawl)
  watchJobs(pawl, true, (line) => tell({ type: 'job', line }))
  running = new Running(pawl, given.modules, given.worker ?? { name: `dev-${given.number}`, tuning: { exitWhenBlocked: true } })
  await running.start((text) => tell({ type: 'notice', text }))
  tell({ type: 'started', runs: running.text })
}

async function stop(graceMs: number): Promise<void> {
  if (isStopping) return
  isStopping = true
  if (running === undefined) process.exit(0)
  const { report } = await running.stop({ graceMs, insisted, say: (text) => tell({ type: 'notice', text }) })
  tell({ type: 'stopped', report })
  // Jobs that still run have been given up; only the end of the process stops them.
  process.exit(0)
}

/** A worker that the module started itself may have claimed jobs already. */
async function fail(error: unknown): Promise<never> {
  await pawl?.close().catch(() => undefined)
  tell({ type: 'failed', failure: failureOf(error) })
  process.exit(1)
}

const notice = (fields: LogFields, message: string): void => {
  if (isJobLine(fields)) return
  const text =
    fields.event === 'worker.rescued'
      ? `a worker is gone (${String(fields.reason)}); taking over its jobs`
      : `${message} ${fieldsText(fields)}`
  tell({ type: 'notice', text: oneLine(text) })
}
const logger: Logger = { debug() {}, info: notice, warn: notice, error: notice }
