// The states of a job. The CHECK constraints of pawl.job and the diagram in README.md say the same; a test compares them.

import type { JobState } from './types.ts'

/** Of rows in pawl.job. A dead job is open: it waits for an operator. */
export const openStates: readonly JobState[] = ['scheduled', 'ready', 'running', 'dead']
/** Of rows in pawl.job_history. */
export const finalStates: readonly JobState[] = ['done', 'cancelled']

export function isFinal(state: JobState): boolean {
  return finalStates.includes(state)
}
