// The events of jobs that `pawl.on` can listen to.

import type { EventTable } from '../kernel/events.ts'
import type { JobEvents } from './types.ts'

export const jobEvents: EventTable<JobEvents> = {
  'job.started': 'An attempt started in this process.',
  'job.done': 'A job that ran in this process is done and settled.',
  'job.failed': 'An attempt failed; `retryInMs` says when the next one starts.',
  'job.dead': 'A job is dead: its last attempt failed, or its process died too often.',
  'job.lost': 'A job running in this process was cancelled, timed out or taken over.',
  'job.refused': 'A write was refused because its fence is no longer current.',
  'worker.opened': 'The worker has a lease and claims jobs.',
  'worker.lost': 'The worker lost its lease and gets a new one.',
  'worker.rescued': 'This process closed a dead worker, whose jobs are taken over next.',
  'worker.blocked': 'A handler blocked the event loop.',
  'worker.unwritable': 'The database cannot write (disk full or read-only); the worker retries.',
  'worker.deciding': 'This worker leaves a job that must run alone to another process.',
  'worker.idle': 'This worker has nothing left to claim, run or settle.',
}
