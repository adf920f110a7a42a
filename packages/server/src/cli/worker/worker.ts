// `pawl worker <module...>`: a process that runs the kinds, projections and sinks of the user's modules until it is stopped.

import { hostname } from 'node:os'
import { createPawl, type Pawl, type StopReport, stderrLogger, type WorkerOptions } from 'pawl'
import { durationMs } from 'pawl/admin'
import { type Context, command, type Flags, given, integer, text, texts, toggle, withDefault } from '../command.ts'
import { assertSameDatabase, databaseText, type FoundDatabase, findDatabase, noDatabase } from '../database.ts'
import { exitCodes, UsageError } from '../failure.ts'
import { oneLine } from '../terminal.ts'
import { type JobLine, jobLineText, watchJobs } from './job-lines.ts'
import { personLogger } from './logger.ts'
import type { WorkerTask } from './messages.ts'
import { Running, sumOf } from './running.ts'
import { exitOf, type StopReason, stopRequests } from './stop-signals.ts'
import { endOnUncaught } from './uncaught.ts'
import { loadModules } from './user-modules.ts'
import { WorkerPool } from './worker-pool.ts'

const flags = {
  concurrency: integer('--concurrency <count>', [1, 10_000], 'maximum number of handlers that run at once (default 20)'),
  queue: texts('--queue <queue>', 'take jobs from this queue only; repeat it for more (default: the queues of the kinds)'),
  name: text('--name <name>', 'the name shown in lists (default: host name and process id)'),
  grace: withDefault(text('--grace <duration>', 'how long running jobs may take to finish on stop'), '20s'),
  each: toggle('--each', 'print a line for each job, not only for failures'),
}
type WorkerContext = Context<typeof flags>

export const worker = command({
  name: 'worker',
  summary:
    'Run the jobs, batches, projections and sinks that your modules define. SIGTERM or Ctrl-C lets running jobs finish; a second one gives them up.',
  examples: ['pawl worker ./worker.ts', 'pawl worker ./email.js ./reports.js --concurrency 50 --each'],
  args: [moduleArgument('<module...>')],
  flags,
  run: work,
})

/** The argument of `worker` and `dev`. */
export function moduleArgument(syntax: string): readonly [string, string] {
  return [syntax, 'modules that export a Pawl, or default (pawl) => { pawl.jobs.define(...) }']
}

async function work(context: WorkerContext, modules: string[]): Promise<number> {
  const { terminal, flags } = context
  refuseTenant(context)
  const graceMs = durationMs(flags.grace)
  const found = await findDatabase(context.database)
  // A module that makes its own Pawl reads it there.
  if (found !== undefined) process.env.DATABASE_URL = found.url
  // A module's own Pawl logs failures too, and here they have lines of their own. With JSON the library's lines are what a machine wants.
  if (terminal.output === 'table') Object.assign(stderrLogger, personLogger(terminal))
  const loaded = await loadModules(modules)
  if (loaded.theirs !== undefined) assertFlagsHold(loaded.theirs, context)
  const options = loaded.theirs === undefined ? (found ?? noDatabase()).options : undefined
  const pawl = loaded.theirs ?? createOurs(options!)
  try {
    await loaded.define(pawl)
    watchJobs(pawl, context.flags.each, (line) => tell(context, line))
    const running = new Running(pawl, modules, { ...workerOptions(flags), deciding: 'leave' })
    endOnUncaught(() => running.worker)
    const requests = stopRequests()
    const alone = new DecidingProcess(context, { database: options, modules })
    pawl.on('worker.deciding', () => alone.start())
    await running.start((text) => terminal.say(text))
    terminal.say(
      `worker ${running.worker.id} (pid ${process.pid}) runs ${running.text} on ${databaseText(pawl)}; Ctrl-C stops it`,
    )
    const reason = await requests.asked
    const why = reason === 'signal' ? '' : 'stdout or stderr is closed; '
    terminal.say(`${why}stopping: running jobs have ${flags.grace} to finish; a second signal gives them up`)
    let isInsisted = false
    void requests.insisted.then(() => {
      isInsisted = true
      alone.insist()
    })
    const [{ report, mustExit }, others] = await Promise.all([
      running.stop({ graceMs, insisted: requests.insisted, say: (text) => terminal.say(text) }),
      alone.stop(),
    ])
    const sum = sumOf([report, ...others])
    terminal.say(stopText(sum))
    const code = exitAfter(sum, { reason, isInsisted, mustExit })
    // Nothing else ends a handler that does not answer, and its jobs have been given to others.
    if (mustExit) process.exit(code)
    return code
  } finally {
    await pawl.close()
  }
}

function createOurs(options: FoundDatabase['options']): Pawl {
  return createPawl({ ...options, applicationName: 'pawl worker' })
}

/** A process that could not start is tried again after this time. */
const restartMs = 5000

/**
 * Jobs whose next crash would be their last run in a process of their own, one at a time, while this one goes on. It is started when the
 * first such job waits, and stays.
 */
class DecidingProcess {
  readonly #create: () => WorkerPool
  readonly #say: (text: string) => void
  #pool: WorkerPool | undefined
  #isStopping = false

  constructor(context: WorkerContext, { database, modules }: Pick<WorkerTask, 'database' | 'modules'>) {
    const { flags, terminal } = context
    const task = {
      database,
      modules,
      graceMs: durationMs(flags.grace),
      applicationName: 'pawl worker, jobs that run alone',
      worker: {
        ...workerOptions(flags),
        name: `${flags.name ?? `${hostname()}-${process.pid}`}-alone`,
        concurrency: 1,
        deciding: 'only',
      },
    } as const
    this.#say = (text) => terminal.say(text)
    this.#create = () =>
      new WorkerPool(task, {
        onJob: (line) => {
          if (flags.each || line.outcome !== 'done') tell(context, line)
        },
        onNotice: this.#say,
        nameOf: () => 'the process for jobs that must run alone',
      })
  }

  start(): void {
    if (this.#pool !== undefined || this.#isStopping) return
    this.#pool = this.#create()
    this.#pool.start(1, new AbortController().signal).catch((error: unknown) => {
      this.#say(oneLine(error instanceof Error ? error.message : String(error)))
      setTimeout(() => {
        this.#pool = undefined
      }, restartMs).unref()
    })
  }

  async stop(): Promise<readonly StopReport[]> {
    this.#isStopping = true
    return this.#pool === undefined ? [] : [await this.#pool.stop()]
  }

  insist(): void {
    this.#pool?.insist()
  }
}

function workerOptions({ concurrency, queue, name }: WorkerContext['flags']): WorkerOptions {
  return { ...given({ concurrency, queues: queue, name: name || undefined }), tuning: { exitWhenBlocked: true } }
}

function tell({ terminal }: Pick<Context<Flags>, 'terminal'>, line: JobLine): void {
  if (terminal.output === 'table') terminal.line(jobLineText(terminal, line))
  else terminal.line(JSON.stringify(line))
}

/** Refuses flags that the module's own Pawl would ignore. Variables of the environment may be meant for other programs. */
function assertFlagsHold(pawl: Pawl, { database }: Pick<Context<Flags>, 'database'>): void {
  const { databaseUrl, pooler, directUrl } = database
  if (databaseUrl !== undefined) assertSameDatabase(pawl, databaseUrl)
  if (pooler === (process.env.PAWL_POOLER || undefined) && directUrl === (process.env.PAWL_DIRECT_URL || undefined)) return
  throw new UsageError(
    'The module exports its own Pawl, so --pooler and --direct-url have no effect.',
    'leave them out, and pass pooler and directUrl to createPawl',
  )
}

export function refuseTenant({ tenant }: Pick<Context<Flags>, 'tenant'>): void {
  if (tenant === undefined) return
  throw new UsageError(
    'A worker runs the jobs of every tenant, so --tenant has no effect.',
    'leave --tenant out; to keep tenants apart, give their kinds separate queues and use --queue',
  )
}

/** A supervisor can tell a drain in which all jobs ended from one that gave some up. */
export function exitAfter(
  { stillRunning, unsettled }: StopReport,
  {
    reason,
    isInsisted,
    mustExit = false,
  }: { readonly reason: StopReason; readonly isInsisted: boolean; readonly mustExit?: boolean },
): number {
  if (stillRunning.length > 0 || mustExit) return isInsisted ? exitCodes.interrupted : exitCodes.timedOut
  return unsettled.length > 0 ? exitCodes.unavailable : exitOf(reason)
}

export function stopText({ finished, released, stillRunning, unsettled }: StopReport): string {
  const parts = [`${finished} finished`, `${released} released`]
  if (stillRunning.length > 0) parts.push(`${stillRunning.length} given up while running: ${stillRunning.join(', ')}`)
  if (unsettled.length > 0)
    parts.push(`${unsettled.length} ended but not stored, so they will run again: ${unsettled.join(', ')}`)
  return `stopped: ${parts.join(', ')}`
}
