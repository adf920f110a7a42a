// The end of a worker process by an uncaught error: one line, jobs that have not started are given back, then exit 1.

import { writeSync } from 'node:fs'
import type { Worker } from 'pawl'
import { oneLine } from '../terminal.ts'

export function endOnUncaught(worker: () => Worker | undefined): void {
  let isEnding = false
  const end = (error: unknown): void => {
    if (isEnding) return
    isEnding = true
    const why = error instanceof Error ? (error.stack ?? error.message) : String(error)
    try {
      // Whatever streams and loggers do now, this line is written.
      writeSync(
        2,
        `pawl: this worker process (pid ${process.pid}) exits on an uncaught error${ofJobs(worker())}: ${oneLine(why)}\n`,
      )
    } catch {
      // stderr is closed.
    }
    const words = worker()?.lastWords('uncaught error') ?? Promise.resolve()
    void words.catch(() => undefined).finally(() => process.exit(1))
  }
  process.on('uncaughtException', end)
  process.on('unhandledRejection', end)
}

const shownMax = 10

/** Most often it is a promise that a handler did not await. */
function ofJobs(worker: Worker | undefined): string {
  const jobs = worker?.suspects() ?? []
  if (jobs.length === 0) return ''
  const shown = jobs.slice(0, shownMax).map(({ id, kind }) => `${oneLine(kind)} ${id}`)
  const more = jobs.length > shownMax ? ` and ${jobs.length - shownMax} more` : ''
  return jobs.length === 1 ? ` of job ${shown[0]}` : ` of one of the jobs ${shown.join(', ')}${more}`
}
