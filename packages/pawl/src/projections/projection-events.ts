// The events of projections and sinks that `pawl.on` can listen to.

import type { EventTable } from '../kernel/events.ts'
import type { ProjectionEvents } from './types.ts'

export const projectionEvents: EventTable<ProjectionEvents> = {
  'cursor.acquired': 'This process holds a cursor.',
  'cursor.lost': 'This process no longer holds a cursor.',
  'cursor.refused': 'A write named a fence that is no longer current.',
  'cursor.latched': 'The log is not what the cursor has read; it stands until a person resumes it.',
  'projection.failed': 'A handler failed; `retryInMs` says when the event is tried again.',
  'projection.parked': 'A key waits for a person.',
  'projection.unparked': 'A parked key was replayed in order.',
}
