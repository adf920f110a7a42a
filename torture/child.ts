// How the supervisor tells a process what it is. In the environment, because the keeper's thread of that process reads it too.

import type { PlannedFault } from './faults.ts'

export interface ChildOptions {
  readonly slot: string
  /** Which start of the slot this is. */
  readonly start: number
  /** What its program is told beside; a producer, for one, in which way to enqueue. */
  readonly how: string
  readonly dir: string
  readonly url: string
  readonly controlPort: number
  readonly leaseMs: number
  readonly beatMs: number
  readonly concurrency: number
  readonly faults: readonly PlannedFault[]
  readonly keeperFaults: readonly PlannedFault[]
  readonly canary?: string
}

const variable = 'PAWL_TORTURE_CHILD'

export function childEnvironment(options: ChildOptions): Record<string, string> {
  return { [variable]: JSON.stringify(options) }
}

export function childOptions(): ChildOptions {
  return JSON.parse(process.env[variable] ?? '{}') as ChildOptions
}

export function procOf({ slot, start }: Pick<ChildOptions, 'slot' | 'start'>): string {
  return `${slot}.${start}`
}
