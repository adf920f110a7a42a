// The worker in a process of `pawl worker` or `pawl dev`, for the kinds, projections and sinks of the modules.

import type { Pawl, StopReport, Worker, WorkerOptions } from 'pawl'
import { UsageError } from '../failure.ts'
import { oneLine } from '../terminal.ts'

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
  readonly worker: Worker
  readonly #pawl: Pawl
  readonly #modules: readonly string[]

  constructor(pawl: Pawl, modules: readonly string[], options: WorkerOptions) {
    this.#pawl = pawl
    this.#modules = modules
    if (pawl.running.length > 0) throw startsItself(modules)
    this.worker = pawl.worker(options)
  }

  async start(say: (text: string) => void): Promise<void> {
    const unwatch = this.#pawl.on('worker.opened', () => {
      if (this.#others.length === 0) return
      unwatch()
      say(`note  ${this.#modules.join(' and ')} started a worker itself, beside that of this command: ${startFix(this.#modules)}`)
    })
    await this.worker.start()
  }

  /** Workers that the modules started after they were loaded, as in an async function that nothing awaits. */
  get #others(): readonly Worker[] {
    return this.#pawl.running.filter((each) => each !== this.worker)
  }

  /** The kinds, projections and sinks that it runs. */
  get text(): string {
    const { kinds, projections } = this.worker
    const cursors = projections.length === 0 ? [] : [`the projections and sinks ${projections.join(', ')}`]
    return [...(kinds.length === 0 ? [] : [kinds.join(', ')]), ...cursors].join(' and ')
  }

  /** Stops with grace; after it, or at a second signal, gives the incarnation up, so that other processes take its jobs at once. */
  async stop(stopping: Stopping): Promise<Stopped> {
    const report = sumOf(await Promise.all([this.worker, ...this.#others].map((worker) => stopWorker(worker, stopping))))
    return { report, mustExit: report.stillRunning.length + report.aborted.length > 0 }
  }
}

async function stopWorker(worker: Worker, { graceMs, insisted, say }: Stopping): Promise<StopReport> {
  const stopped = worker.stop({ grace: graceMs, abandon: true })
  // Both calls end alike, and the error of the first is reported below.
  void insisted.then(() => worker.stop({ grace: 0, abandon: true })).catch(() => undefined)
  const report = await stopped
  if (report.abandonError !== undefined) say(notToldText(report.abandonError))
  if (report.aborted.length > 0) say(`aborted the handlers of ${report.aborted.join(', ')}; another process goes on from there`)
  return report
}

function notToldText(error: unknown): string {
  const why = error instanceof Error ? error.message : String(error)
  return `the jobs could not be given up in the database (${oneLine(why)}); other workers take them over when the lease ends`
}

export function sumOf(reports: readonly StopReport[]): StopReport {
  return {
    finished: reports.reduce((sum, { finished }) => sum + finished, 0),
    released: reports.reduce((sum, { released }) => sum + released, 0),
    stillRunning: reports.flatMap(({ stillRunning }) => stillRunning),
    unsettled: reports.flatMap(({ unsettled }) => unsettled),
    aborted: reports.flatMap(({ aborted }) => aborted),
  }
}

function startsItself(modules: readonly string[]): UsageError {
  return new UsageError(
    `${modules.join(' and ')} starts a worker itself, and this command would start a second one.`,
    startFix(modules),
  )
}

function startFix(modules: readonly string[]): string {
  return `run it with node ${modules[0] ?? '<module>'}, or remove worker().start() from the module`
}
