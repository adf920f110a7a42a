// The state machine of a cursor, as data. The CHECK constraint of pawl.cursor and the diagram in README.md say the same.

import type { CursorState } from './types.ts'

export interface Transition {
  readonly from: CursorState
  readonly to: CursorState
  readonly by: string
  readonly statement: string
}

export const cursorStates: readonly CursorState[] = ['running', 'paused', 'stale', 'latched']

export const transitions: readonly Transition[] = [
  { from: 'running', to: 'paused', by: 'an operator', statement: 'pause' },
  { from: 'running', to: 'paused', by: 'its breaker, after many parked keys', statement: 'trip-breaker' },
  { from: 'paused', to: 'running', by: 'an operator', statement: 'resume' },
  { from: 'running', to: 'stale', by: 'a lag beyond its limit', statement: 'mark-stale' },
  { from: 'paused', to: 'stale', by: 'a lag beyond its limit', statement: 'mark-stale' },
  { from: 'stale', to: 'running', by: 'an operator, while its events are still kept', statement: 'resume' },
  { from: 'running', to: 'latched', by: 'a log that is not the one it read', statement: 'latch' },
  { from: 'latched', to: 'running', by: 'an operator', statement: 'resume' },
]
