// The messages between `pawl dev` and its worker processes.

import type { StopReport, WorkerOptions } from 'pawl'
import type { FoundDatabase } from '../database.ts'
import type { Failure } from '../failure.ts'
import type { JobLine } from './job-lines.ts'

export interface WorkerTask {
  readonly number: number
  /** Undefined: that of the Pawl that the modules export. */
  readonly database: FoundDatabase['options'] | undefined
  /** The user's modules; none: the demonstration jobs. */
  readonly modules: readonly string[]
  readonly graceMs: number
  readonly applicationName?: string
  readonly worker?: WorkerOptions
}

export type ToWorker =
  | { readonly type: 'start'; readonly task: WorkerTask }
  | { readonly type: 'stop' }
  | { readonly type: 'abandon' }

export type FromWorker =
  | { readonly type: 'started'; readonly runs: string }
  | { readonly type: 'job'; readonly line: JobLine }
  | { readonly type: 'notice'; readonly text: string }
  | { readonly type: 'failed'; readonly failure: Failure }
  | { readonly type: 'stopped'; readonly report: StopReport }
