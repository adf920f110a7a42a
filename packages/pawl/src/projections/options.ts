// The options of what people and programs do to projections, reactions and sinks, as tables, and those of a runner. definition.ts checks what
// they are defined with.

import { hostname } from 'node:os'
import { PawlError } from '../errors.ts'
import { keepDaysDefault } from '../events/maintenance.ts'
import type { EventTable } from '../kernel/events.ts'
import { lookEveryMs } from '../kernel/lease.ts'
import {
  assertKnown,
  boolean,
  duration,
  durationIn,
  integer,
  option,
  reason,
  required,
  signal,
  type TableOf,
  text,
  whole,
} from '../kernel/options.ts'
import type { Act, ProjectionEvents, ResumeFrom, RunnerOptions, SeenOptions } from './types.ts'

const generation = integer({ from: 1, to: 1_000_000, otherwise: 'all', doc: 'Only this generation.' })
const timeout = duration({
  from: 0,
  to: 86_400_000,
  default: '30s',
  doc: 'How long to wait until both generations are at the same position.',
})

export const actTable = {
  reason: reason('The reason, stored in pawl.audit.'),
  actor: text({ to: 200, doc: 'The acting person or program, stored in pawl.audit.' }),
} satisfies TableOf<Act>

export const pauseTable = { ...actTable, generation }

export const resumeTable = {
  ...pauseTable,
  from: option<ResumeFrom>(
    "a position, 'oldest' or 'now'",
    { otherwise: 'its current position', doc: 'The position to resume after. Events in between are skipped, or applied again.' },
    (given) => given === 'oldest' || given === 'now' || (Number.isSafeInteger(given) && (given as number) >= 0),
  ),
}

export const skipTable = {
  ...actTable,
  position: required(integer({ from: 1, to: Number.MAX_SAFE_INTEGER, doc: 'The position of the event.' })),
}

export const unparkTable = {
  ...actTable,
  key: text({ to: 500, otherwise: 'all parked keys', doc: 'The parked key.' }),
  keyTenant: text({ from: 0, to: 100, otherwise: 'any', doc: 'The tenant of the key.' }),
}

export const parkedTable = { limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The maximum number of keys to list.' }) }

export const seenTable = {
  timeout: duration({ from: 0, to: 86_400_000, default: '5s', doc: 'How long to wait.' }),
  signal: signal({ doc: 'Ends the wait.' }),
} satisfies TableOf<SeenOptions>

export const generationTable = { ...actTable, generation: required(generation) }

export const compareTable = { generation: required(generation), timeout }

export const switchTable = {
  ...generationTable,
  timeout,
  mayDiffer: boolean({ default: false, doc: 'true: switch even if rows differ.' }),
}

// ---- a runner

export const runnerDefaults = {
  leaseMs: 30_000,
  lookMs: 500,
  pollMs: 1000,
  handlerConnectionsMax: 10,
  keepDays: keepDaysDefault,
} as const

const known = new Set(['name', 'lease', 'beatMs', 'lookMs', 'pollMs', 'handlerConnectionsMax', 'keepDays'])

export interface ResolvedRunnerOptions {
  readonly name: string
  readonly leaseMs: number
  readonly beatMs: number
  readonly keeperMs: number
  readonly lookMs: number
  readonly pollMs: number
  readonly handlerConnectionsMax: number
  readonly keepDays: number
}

export function resolveRunnerOptions(options: RunnerOptions): ResolvedRunnerOptions {
  assertKnown('runner()', options, known)
  const leaseMs = durationIn('lease', options.lease ?? runnerDefaults.leaseMs, 100, 3_600_000)
  const beatMs = whole('beatMs', options.beatMs ?? Math.floor(leaseMs / 4), 10, 900_000)
  if (beatMs * 3 > leaseMs)
    throw new PawlError('PAWL_CONFIG', `beatMs (${beatMs}) must be at most a third of the lease (${leaseMs} ms).`)
  return {
    name: options.name ?? `${hostname()}-${process.pid}`,
    leaseMs,
    beatMs,
    keeperMs: options.beatMs ?? lookEveryMs(leaseMs),
    lookMs: whole('lookMs', options.lookMs ?? runnerDefaults.lookMs, 10, 600_000),
    pollMs: whole('pollMs', options.pollMs ?? runnerDefaults.pollMs, 10, 600_000),
    handlerConnectionsMax: whole(
      'handlerConnectionsMax',
      options.handlerConnectionsMax ?? runnerDefaults.handlerConnectionsMax,
      1,
      1000,
    ),
    keepDays: whole('keepDays', options.keepDays ?? runnerDefaults.keepDays, 1, 36_500),
  }
}

/** The events that `pawl.on` can listen to. */
export const projectionEvents: EventTable<ProjectionEvents> = {
  'cursor.acquired': 'This process acquired a cursor.',
  'cursor.lost': 'This process no longer holds a cursor.',
  'cursor.refused': 'A write was refused because its fence is no longer current.',
  'cursor.latched': 'The log is not the one that the cursor has read. The cursor is stopped until an operator resumes it.',
  'projection.failed': 'A handler failed; `retryInMs` says when the event is tried again.',
  'projection.parked': 'A key was parked and waits for an operator.',
  'projection.unparked': 'A parked key was replayed in order.',
}
