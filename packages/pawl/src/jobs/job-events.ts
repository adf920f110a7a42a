// The events of jobs that `pawl.on` can listen to.

import type { EventTable } from '../kernel/events.ts'
import type { JobEvents } from './types.ts'

export const jobEvents: EventTable<JobEvents> = {
  'job.started': 'An attempt began here.',
  'job.done': 'A job that ran here is done, and its end is stored.',
  'job.failed': 'An attempt failed; `retryInMs` says when the next begins.',
  'job.dead': 'A job is dead: its last attempt failed, or its process died once too often.',
  'job.lost': 'A job that runs here was cancelled, timed out or taken over.',
  'job.refused': 'A write named a fence that is no longer current.',
  'worker.opened': 'The worker has a lease and claims.',
  'worker.lost': 'The worker lost its lease and opens another.',
  'worker.rescued': 'This process closed a dead worker; its jobs are taken over next.',
  'worker.blocked': 'A handler blocked the event loop.',
  'worker.unwritable': 'The database cannot write now; the worker tries again.',
  'worker.deciding': 'A job that must run alone waits, and this worker leaves it to another process.',
  'worker.idle': 'Nothing is claimable, running or unsettled here.',
}
