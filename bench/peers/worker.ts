// Starts everything that a Pawl defines. Builds with `pawl.worker` are compared with older ones, so both ways are here.

import type { Pawl } from 'pawl'

export interface Stoppable {
  stop(options?: { grace: number }): Promise<unknown>
}

interface Startable extends Stoppable {
  start(): Promise<unknown>
}

interface EitherWay {
  worker?(options: { concurrency?: number }): Startable
  readonly jobs: { worker?(options: { concurrency?: number }): Startable }
  readonly projections: { runner?(): Startable }
}

export async function startWorker(pawl: Pawl, runs: 'jobs' | 'cursors' | 'both', concurrency?: number): Promise<Stoppable> {
  const { worker, jobs, projections } = pawl as unknown as EitherWay
  const options = concurrency === undefined ? {} : { concurrency }
  const parts: Startable[] = []
  if (worker !== undefined) parts.push(worker.call(pawl, options))
  else {
    if (runs !== 'cursors') parts.push(jobs.worker!(options))
    if (runs !== 'jobs') parts.push(projections.runner!())
  }
  for (const part of parts) await part.start()
  return { stop: (given) => Promise.all(parts.map((part) => part.stop(given))) }
}
