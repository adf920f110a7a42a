// The events of projections and sinks that `pawl.on` can listen to.

import type { EventTable } from '../kernel/events.ts'
import type { ProjectionEvents } from './types.ts'

export const projectionEvents: EventTable<ProjectionEvents> = {
  'cursor.acquired': 'This process acquired a cursor.',
  'cursor.lost': 'This process no longer holds a cursor.',
  'cursor.refused': 'A write was refused because its fence is no longer current.',
  'cursor.latched': 'The log is not the one that the cursor has read. The cursor is stopped until an operator resumes it.',
  'projection.failed': 'A handler failed; `retryInMs` says when the event is tried again.',
  'projection.parked': 'A key was parked and waits for an operator.',
  'projection.unparked': 'A parked key was replayed in order.',
}
