// Public names of jobs.

export { Snooze } from './endings.ts'
export { Jobs, type ListedJob } from './jobs.ts'
export type {
  AttemptRow,
  DeadJob,
  DefineOptions,
  EnqueueOptions,
  Job,
  JobContext,
  JobRow,
  JobState,
  JobTx,
  Kind,
} from './types.ts'
export type { Why } from './why.ts'
