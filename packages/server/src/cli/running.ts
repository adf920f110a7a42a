// What a process of `pawl worker` or `pawl dev` runs: a worker for the kinds of the modules, and a runner for their projections and sinks.

import type { Pawl, ProjectionRunner, StopReport, Worker, WorkerOptions } from 'pawl'
import { UsageError } from './failure.ts'
import { oneLine } from './terminal.ts'

export interface Stopping {
  readonly graceMs: number
  /** Ends the grace. */
  readonly insisted: Promise<unknown>
  readonly say: (text: string) => void
}

export interface Stopped {
  readonly report: StopReport
  /** Nothing but the end of the process stops what still runs. */
  readonly mustExit: boolean
}

export class Running {
  readonly worker: Worker | undefined
  readonly #runner: ProjectionRunner | undefined
  readonly #projections: readonly string[]
  readonly #pawl: Pawl
  readonly #modules: readonly string[]

  constructor(pawl: Pawl, modules: readonly string[], options: WorkerOptions) {
    this.#pawl = pawl
    this.#modules = modules
    if (pawl.running.length > 0) throw startsItself(modules)
    const { kinds, projections } = pawl.runnable
    // Beside a job whose next crash would be its last runs nothing else, no cursor either.
    this.#projections = options.deciding === 'only' ? [] : projections
    // With neither, the worker says what is missing.
    if (kinds.length > 0 || this.#projections.length === 0) this.worker = pawl.jobs.worker(options)
    if (this.#projections.length > 0)
      this.#runner = pawl.projections.runner(options.name === undefined ? {} : { name: options.name })
  }

  async start(say: (text: string) => void): Promise<void> {
    const unwatch = this.#pawl.on('worker.opened', () => {
      if (this.#others.length === 0) return
      unwatch()
      say(`note  ${this.#modules.join(' and ')} started a worker itself, beside that of this command: ${startFix(this.#modules)}`)
    })
    await Promise.all([this.worker?.start(), this.#runner?.start()])
  }

  /** What the modules started themselves after they were loaded, as in an async function that nothing awaits. */
  get #others(): readonly (Worker | ProjectionRunner)[] {
    return this.#pawl.running.filter((each) => each !== this.worker && each !== this.#runner)
  }

  get id(): string {
    return this.worker === undefined ? `runner ${this.#runner!.id}` : `worker ${this.worker.id}`
  }

  /** The kinds, projections and sinks that it runs. */
  get text(): string {
    const projections = this.#projections.length === 0 ? [] : [`the projections and sinks ${this.#projections.join(', ')}`]
    return [...(this.worker === undefined ? [] : [this.worker.kinds.join(', ')]), ...projections].join(' and ')
  }

  /** Stops with grace; when that is over, or somebody insists, the incarnation is given up so that others take its jobs at once. */
  async stop(stopping: Stopping): Promise<Stopped> {
    const all = [this.worker, this.#runner, ...this.#others].filter((each) => each !== undefined)
    const stopped = await Promise.all(
      all.map(async (each) =>
        'metrics' in each
          ? { report: await stopWorker(each, stopping), isStopped: true }
          : { report: sumOf([]), isStopped: await stopRunner(each, stopping) },
      ),
    )
    const report = sumOf(stopped.map((each) => each.report))
    return { report, mustExit: report.stillRunning.length > 0 || stopped.some(({ isStopped }) => !isStopped) }
  }
}

async function stopWorker(worker: Worker, { graceMs, insisted, say }: Stopping): Promise<StopReport> {
  const impatience = new AbortController()
  void insisted.then(() => impatience.abort())
  const report = await worker.stop({ grace: graceMs, signal: impatience.signal, abandon: true })
  if (report.abandonError !== undefined) say(notToldText(report.abandonError))
  return report
}

function notToldText(error: unknown): string {
  const why = error instanceof Error ? error.message : String(error)
  return `the jobs could not be given up in the database (${oneLine(why)}); other workers take them over when the lease ends`
}

/** Says whether it stopped before the grace was over. */
async function stopRunner(runner: ProjectionRunner, { graceMs, insisted, say }: Stopping): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const graceOver = new Promise<false>((resolve) => {
    timer = setTimeout(resolve, graceMs, false)
    void insisted.then(() => resolve(false))
  })
  const isStopped = await Promise.race([runner.stop().then(() => true), graceOver])
  clearTimeout(timer)
  if (!isStopped) say('a handler of a projection or sink has not ended; another process takes its cursor when this one is gone')
  return isStopped
}

export function sumOf(reports: readonly StopReport[]): StopReport {
  return {
    finished: reports.reduce((sum, { finished }) => sum + finished, 0),
    released: reports.reduce((sum, { released }) => sum + released, 0),
    stillRunning: reports.flatMap(({ stillRunning }) => stillRunning),
    unsettled: reports.flatMap(({ unsettled }) => unsettled),
  }
}

function startsItself(modules: readonly string[]): UsageError {
  return new UsageError(
    `${modules.join(' and ')} starts a worker or a runner itself, and this command would start a second one.`,
    startFix(modules),
  )
}

function startFix(modules: readonly string[]): string {
  return `run it with node ${modules[0] ?? '<module>'}, or remove worker().start() and runner().start() from the module`
}
