// What a test and its worker process say to each other; types only.

import type { PawlOptions, WorkerOptions } from 'pawl'
import type { ProbeName } from 'pawl/testing'
import type { KindName } from './kinds.ts'

export interface WorkerSpec {
  readonly pawl: Omit<PawlOptions, 'logger'>
  readonly worker: WorkerOptions
  readonly kinds: readonly KindName[]
  /** Where handlers of the `run` shape write their effects; the database of `pawl` unless told. */
  readonly effectsUrl?: string
  /** The process kills itself when it comes to this probe for the given time. */
  readonly killAt?: { readonly probe: ProbeName; readonly hit: number }
}

export type Said =
  | { readonly event: 'ready'; readonly worker: number; readonly wallMs: number }
  | { readonly event: 'started' | 'holding' | 'ended'; readonly id: string; readonly kind: string; readonly attempt: number }
  | { readonly event: 'threw'; readonly id: string; readonly code: string | undefined; readonly aborted: boolean }
  | { readonly event: 'enqueued'; readonly id: string }
  | { readonly event: 'killing'; readonly probe: ProbeName }
  | { readonly event: 'stopped'; readonly metrics: Readonly<Record<string, number>> }
  | {
      readonly event: 'job.refused' | 'job.lost' | 'worker.lost' | 'worker.rescued' | 'worker.blocked' | 'worker.unwritable'
      readonly detail: Readonly<Record<string, unknown>>
    }
