// The state machine of a batch, as data. The CHECK constraints of pawl.batch, the diagrams in README.md and docs/guides/batches.md say the same; a test compares them.

import type { BatchState } from './types.ts'

export interface BatchTransition {
  readonly from: BatchState
  readonly to: BatchState
  readonly by: string
}

export const batchStates = ['queued', 'running', 'finished', 'timed-out', 'replaced', 'cancelled', 'failed'] as const

export const batchTransitions: readonly BatchTransition[] = [
  { from: 'queued', to: 'running', by: 'its track is free' },
  { from: 'queued', to: 'cancelled', by: 'cancel' },
  { from: 'running', to: 'finished', by: 'every item has ended' },
  { from: 'running', to: 'timed-out', by: 'its deadline has passed' },
  { from: 'running', to: 'replaced', by: 'a start with the policy replace' },
  { from: 'running', to: 'cancelled', by: 'cancel' },
  { from: 'running', to: 'failed', by: 'a step is dead' },
]
