// Attempts without a worker: what they start and how they end is kept in lists.

import { silentLogger } from '../../src/config.ts'
import { Attempt, type Runtime } from '../../src/jobs/attempt.ts'
import type { Ending } from '../../src/jobs/endings.ts'
import type { DefinedKind } from '../../src/jobs/kinds.ts'
import type { Outcomes } from '../../src/jobs/outcomes.ts'
import { noCounts } from '../../src/jobs/outcomes.ts'

export interface Observed extends Runtime {
  readonly started: Attempt[]
  readonly ends: Ending[]
  /** The ids of the jobs that were given back. */
  readonly released: string[]
}

export function observed(given: Partial<Runtime> = {}): Observed {
  const started: Attempt[] = []
  const ends: Ending[] = []
  const outcomes: Partial<Outcomes> = {
    counts: { ...noCounts },
    started: (attempt) => void started.push(attempt),
    settled: () => undefined,
    refused: () => undefined,
  }
  return {
    process: { installation: 'test', config: { logger: silentLogger }, trouble: () => undefined } as never,
    transactions: undefined as never,
    settler: { isFull: false, add: (ending) => void ends.push(ending) },
    outcomes: outcomes as Outcomes,
    limits: { bytesMax: 1000 },
    touchMs: 1000,
    waits: new Map(),
    ...given,
    started,
    ends,
    get released() {
      return ends.filter(({ failed }) => failed?.outcome === 'released').map(({ attempt }) => attempt.id)
    },
  }
}

export function attemptOf(kind: DefinedKind, runtime: Runtime = observed(), id = '1', isSuspect = false): Attempt {
  const row = { tenant: '', id, fence: '1', queue: 'default', kind: kind.name, payload: '{}', payload_version: 1, attempt: 2 }
  return new Attempt({ ...row, max_attempts: 5, crashes: 1, headers: null, due_us: '0' }, kind, runtime, 1, isSuspect)
}
