// The state machine of a job, as data. The CHECK constraints of pawl.job and the diagram in README.md say the same; a test compares them.

import type { JobState } from './types.ts'

export interface Transition {
  readonly from: JobState
  readonly to: JobState
  readonly by: string
  readonly statement: string
}

/** Of rows in pawl.job. A dead job is open: it waits for an operator. */
export const openStates: readonly JobState[] = ['scheduled', 'ready', 'running', 'dead']
/** Of rows in pawl.job_history. */
export const finalStates: readonly JobState[] = ['done', 'cancelled']

export const transitions: readonly Transition[] = [
  { from: 'scheduled', to: 'ready', by: 'its time has come', statement: 'promote' },
  { from: 'scheduled', to: 'ready', by: 'an operator', statement: 'retry' },
  { from: 'ready', to: 'running', by: 'a claim', statement: 'claim' },
  { from: 'ready', to: 'running', by: 'a claim of a suspect', statement: 'claim-suspect' },
  { from: 'running', to: 'done', by: 'its handler', statement: 'settle' },
  { from: 'running', to: 'scheduled', by: 'a failure or a snooze', statement: 'settle-failed' },
  { from: 'running', to: 'ready', by: 'a release', statement: 'settle-failed' },
  { from: 'running', to: 'dead', by: 'its last failure', statement: 'settle-failed' },
  { from: 'running', to: 'ready', by: 'a rescue', statement: 'rescue' },
  { from: 'running', to: 'dead', by: 'a rescue at its limit of crashes', statement: 'rescue' },
  { from: 'running', to: 'scheduled', by: 'its time limit', statement: 'time-out' },
  { from: 'running', to: 'dead', by: 'its time limit', statement: 'time-out' },
  { from: 'running', to: 'ready', by: 'a claim whose answer was lost', statement: 'release-unknown' },
  { from: 'dead', to: 'ready', by: 'an operator', statement: 'retry' },
  { from: 'scheduled', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'ready', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'running', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'dead', to: 'cancelled', by: 'an operator', statement: 'cancel' },
]

export function isFinal(state: JobState): boolean {
  return finalStates.includes(state)
}
