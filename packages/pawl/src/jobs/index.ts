// Public names of jobs.
export { Jobs, type ListedJob } from './jobs.ts'
export { Snooze } from './snooze.ts'
export { finalStates, openStates, type Transition, transitions } from './states.ts'
export type * from './types.ts'
export type { Why } from './why.ts'
