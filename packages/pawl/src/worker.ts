// The worker: everything that a process runs, jobs and cursors, under one lease. It starts the process and its parts, and stops them.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from './config.ts'
import { caught, PawlError, shown } from './errors.ts'
import { type DefinedKind, hasHandler, kindDefaults } from './jobs/kinds.ts'
import { maintenance } from './jobs/maintenance.ts'
import { noCounts } from './jobs/outcomes.ts'
import { JobsPart, type JobsReport } from './jobs/part.ts'
import type { JobEvents } from './jobs/types.ts'
import type { SweepLimits } from './jobs/watch.ts'
import type { Events } from './kernel/events.ts'
import { resolve } from './kernel/options.ts'
import { Grace, Process } from './kernel/process.ts'
import { newThread } from './new-thread.ts'
import { type Defined, kindOf } from './projections/definition.ts'
import { CursorsPart } from './projections/part.ts'
import type { ProjectionEvents } from './projections/types.ts'
import {
  type Metrics,
  type ResolvedWorkerOptions,
  resolveWorkerOptions,
  type StopOptions,
  type StopReport,
  stopTable,
  type WorkerOptions,
} from './worker-options.ts'

/** How long the last words of a process that ends by an error may take. */
const lastWordsMs = 2000
const sweepLimits: SweepLimits = { maxAttempts: kindDefaults.retry.attempts, maxCrashes: kindDefaults.retry.crashes }
const nothingStopped: JobsReport = { finished: 0, released: 0, stillRunning: [], unsettled: [] }

interface WorkerCore {
  readonly config: Config
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly projections: ReadonlyMap<string, Defined>
  /** Those that were made and not stopped. */
  readonly workers: Set<Worker>
  readonly jobEvents: Events<JobEvents>
  readonly projectionEvents: Events<ProjectionEvents>
  /** Called by what happens in this process, such as an append; returns what ends it. */
  readonly onLocal: (listener: () => void) => () => void
}

export class Worker {
  /** The kinds that it runs. */
  readonly kinds: readonly string[]
  /** The projections and sinks that it runs. */
  readonly projections: readonly string[]
  readonly #workers: Set<Worker>
  readonly #process: Process
  readonly #jobs: JobsPart | undefined
  readonly #cursors: CursorsPart | undefined
  readonly #grace = new Grace()
  #abandons = false
  /** Its jobs have ended, or their grace has. */
  #isDrained = false
  #starting: Promise<void> | undefined
  #stopped: Promise<StopReport> | undefined
  /** Resolves with why it failed. */
  #abandoned: Promise<unknown> | undefined

  constructor(core: WorkerCore, given: WorkerOptions) {
    // The definitions of this moment: what is defined later waits for the next worker.
    const kinds = new Map([...core.kinds].filter(([, kind]) => hasHandler(kind)))
    const options = resolveWorkerOptions(given, { kinds: [...kinds.values()], projections: [...core.projections.values()] })
    const runsJobs = kinds.size > 0 && options.queues.length > 0
    const isInVain = kinds.size === 0 && (given.queues?.length ?? 0) > 0
    if (isInVain || (!runsJobs && options.projections.length === 0)) throw nothingToDo(core, given)
    this.kinds = runsJobs ? [...kinds.keys()] : []
    this.projections = [...new Set(options.projections.map(({ name }) => name))]
    this.#workers = core.workers
    this.#process = createProcess(core, options, this.kinds)
    if (runsJobs) {
      this.#jobs = new JobsPart({ process: this.#process, kinds, events: core.jobEvents, worker: options })
      this.#process.add(this.#jobs)
    }
    if (options.projections.length > 0) {
      this.#cursors = createCursors(core, options, this.#process, !runsJobs)
      this.#process.add(this.#cursors)
    }
    core.workers.add(this)
    if (runsJobs) warnOfQueues(core.config, given.queues ?? [], [...kinds.values()])
  }

  /** The id of the current incarnation. */
  get id(): number | undefined {
    return this.#process.id
  }

  metrics(): Metrics & { running: number; buffered: number; unsettled: number } {
    const jobs = this.#jobs?.metrics() ?? { ...noCounts, claims: 0, running: 0, buffered: 0, unsettled: 0 }
    const { conflicts, retries, errors } = this.#process.counts
    return { ...jobs, conflicts, retries, errors }
  }

  /** The cursors that this process holds now. */
  held(): readonly { readonly name: string; readonly generation: number; readonly shard: number; readonly fence: string }[] {
    return this.#cursors?.held() ?? []
  }

  /** Rejects when the database cannot be reached or is not ready; called again, it tries again. */
  async start(): Promise<void> {
    if (this.#process.signal.aborted)
      throw new PawlError('PAWL_STOPPED', 'This worker was stopped and cannot start again. Create a new one with pawl.worker().')
    this.#starting ??= this.#process.start().catch((error: unknown) => {
      this.#starting = undefined
      throw error
    })
    return this.#starting
  }

  /**
   * Lets running handlers finish, gives back what has not started and the cursors, and stops. A job's handler that outlives the grace keeps its
   * lease until it answers. Called again, it may shorten the grace and abandon what still runs.
   */
  async stop(options: StopOptions = {}): Promise<StopReport> {
    const { grace, abandon } = resolve('stop', stopTable, options)
    this.#grace.shorten(grace)
    this.#abandons ||= abandon
    this.#stopped ??= this.#stop()
    this.#abandonRunning()
    const report = await this.#stopped
    const abandonError = await this.#abandoned
    return abandonError === undefined ? report : { ...report, abandonError }
  }

  async #stop(): Promise<StopReport> {
    this.#process.close()
    // A start in progress goes on to begin what is ended here.
    await this.#starting?.catch(() => undefined)
    await Promise.all([this.#drainJobs(), this.#cursors?.drain(this.#grace.over)])
    this.#grace.end()
    const report = { ...(this.#jobs?.report() ?? nothingStopped), aborted: this.#cursors?.aborted ?? [] }
    this.#workers.delete(this)
    const ended = caught(this.#process.end())
    if (report.stillRunning.length === 0) await ended
    return report
  }

  async #drainJobs(): Promise<void> {
    await this.#jobs?.drain(this.#grace.over, () => this.#abandons)
    this.#isDrained = true
    // Before the last settle: the process may have seconds before it is killed, and a kill counts a crash for all that runs.
    this.#abandonRunning()
    await this.#abandoned
    await this.#jobs?.settled()
  }

  #abandonRunning(): void {
    if (!this.#abandons || !this.#isDrained || !this.#jobs?.running) return
    this.#abandoned ??= this.#process.abandon().then(
      () => undefined,
      (error: unknown) => error,
    )
  }

  /**
   * For the end of a process by an uncaught error: gives back jobs that had not started, and closes the incarnation as dead, so that
   * others take what ran and the cursors at once, with a crash counted.
   */
  async lastWords(reason: string): Promise<void> {
    this.#process.abort()
    await this.#jobs?.lastWords()
    await Promise.race([this.#process.abandon(reason), sleep(lastWordsMs, undefined, { ref: false })])
  }

  /** The jobs whose handlers may have left an uncaught error: the one that this call comes out of, if that is known, else all that run. */
  suspects(): readonly { readonly id: string; readonly kind: string }[] {
    return this.#jobs?.suspects() ?? []
  }

  /** Resolves when no job is claimable, running or unsettled here; rejects when the worker is stopped before. For tests and one-off workers. */
  whenIdle(): Promise<void> {
    if (this.#starting === undefined || this.#stopped !== undefined)
      return Promise.reject(new PawlError('PAWL_STOPPED', 'This worker is not running: call start() before whenIdle().'))
    return this.#jobs?.whenIdle() ?? Promise.resolve()
  }
}

/** Jobs can be enqueued into any queue, so a queue that no kind names is allowed; most often it is misspelt. */
function warnOfQueues({ logger }: Config, queues: readonly string[], kinds: readonly DefinedKind[]): void {
  const defined = new Set(kinds.map(({ queue }) => queue))
  for (const queue of new Set(queues))
    if (!defined.has(queue))
      logger.warn(
        { queue },
        `no kind here is defined for queue ${shown(queue)}: it runs only jobs that are enqueued with that queue. The kinds are defined for ${[...defined].map(shown).join(', ')}`,
      )
}

function createProcess({ config, jobEvents }: WorkerCore, options: ResolvedWorkerOptions, kinds: readonly string[]): Process {
  const { concurrency, projections, handlerConnectionsMax } = options
  const worker = {
    ...options,
    // One for deciding runs alone takes nothing else, so no queue counts on it.
    queues: kinds.length === 0 || options.deciding === 'only' ? [] : options.queues,
    kinds: [...kinds, ...projections.map(kindOf)],
    limits: sweepLimits,
    newThread,
  }
  // Each cursor, refresh and call of a sink is watched as one handler.
  return new Process({
    config,
    worker,
    events: jobEvents,
    handlersMax: concurrency + (projections.length === 0 ? 128 : 1024),
    handlerConnectionsMax,
  })
}

function createCursors(core: WorkerCore, options: ResolvedWorkerOptions, process: Process, prunes: boolean): CursorsPart {
  const { failures: watch, signal } = process
  const loop = (name: string) => process.loop(name)
  return new CursorsPart({
    process,
    definitions: options.projections,
    events: core.projectionEvents,
    onLocal: core.onLocal,
    leaseMs: options.leaseMs,
    pollMs: options.pollMs,
    keepDays: options.keepEventDays,
    pruning: prunes ? maintenance({ database: core.config.direct, signal, watch, loop }) : undefined,
  })
}

function nothingToDo({ kinds, projections }: WorkerCore, { queues, projections: chosen }: WorkerOptions): PawlError {
  const declared = [...kinds.keys()]
  const isEmpty = declared.length === 0 && projections.size === 0
  const why = isEmpty
    ? 'define at least one kind or projection before you create it'
    : queues?.length === 0 || (chosen?.length === 0 && queues === undefined)
      ? 'queues and projections leave nothing of what this process defines. Leave them out to run all of it'
      : `no kind has a handler in this process${declared.length === 0 ? '' : `: ${declared.slice(0, 10).join(', ')}`}. Import the module with their handlers (define with run or tx, or handle)`
  const what = queues === undefined || queues.length === 0 ? 'nothing to do' : `nothing to do in the queues ${queues.join(', ')}`
  return new PawlError('PAWL_CONFIG', `This worker has ${what}: ${why}.`)
}
