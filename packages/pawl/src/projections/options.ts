// The options of what people and programs do to projections and sinks, as tables. definition.ts checks what they are defined with.

import { boolean, duration, integer, option, reason, required, signal, type TableOf, text } from '../kernel/options.ts'
import type { SeenOptions } from './seen.ts'
import type { Act, ResumeFrom } from './types.ts'

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
