// The job that applies a submission, and its payload.

import type { RecordSetOptions } from './types.ts'

export const applyKind = 'pawl.records.apply'
export const recordsQueue = 'pawl.records'

export interface ApplyPayload {
  readonly submission: string
  /** As the set said when it was submitted: the process that applies it may not define the set. */
  readonly events: NonNullable<RecordSetOptions['events']>
  readonly retry: { readonly attempts: number; readonly initialMs: number; readonly maxMs: number; readonly jitter: boolean }
  readonly keepMs: number
  readonly chunkRows: number
}
