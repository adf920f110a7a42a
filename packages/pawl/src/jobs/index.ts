// Public names of jobs.

export { Snooze } from './endings.ts'
export { Jobs, type ListedJob } from './jobs.ts'
export type * from './types.ts'
export type { Why } from './why.ts'
