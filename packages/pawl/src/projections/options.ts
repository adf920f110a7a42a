// The options of projections, reactions and sinks, and of what people and programs do to them, as tables. Below them, the events of `pawl.on`.

import { retryTable } from '../jobs/options.ts'
import type { EventTable } from '../kernel/events.ts'
import {
  boolean,
  callback,
  duration,
  integer,
  list,
  mapOf,
  nested,
  oneOf,
  option,
  reason,
  required,
  signal,
  type TableOf,
  text,
  tuning,
  type WaitOptions,
  withDefaults,
} from '../kernel/options.ts'
import type {
  Act,
  BatchHandler,
  EventHandler,
  LogProjectionOptions,
  ProjectionEvents,
  ProjectionTable,
  ReactionOptions,
  ResumeFrom,
  SinkOptions,
  StateProjectionOptions,
} from './types.ts'

export const projectionName = required(text({ to: 100, doc: 'The name of a projection, reaction or sink.' }))

export const breakerTable = {
  keys: integer({ from: 1, to: 1_000_000, default: 100, doc: 'The number of parked keys after which the cursor pauses.' }),
  within: duration({
    from: 1000,
    to: 30 * 86_400_000,
    default: '1h',
    doc: 'The time window. Keys parked before it, or before the last resume, do not count.',
  }),
} satisfies TableOf<NonNullable<SinkOptions['breaker']>>

const column = text({ to: 63, doc: 'The name of a column.' })

export const projectionTableTable = {
  name: required(text({ to: 200, doc: "The table that readers use, such as 'balances' or 'app.balances'." })),
  key: required(list(column, { doc: 'The columns that identify a row.' })),
  columns: required(list(column, { doc: 'The columns that two generations must agree on.' })),
} satisfies TableOf<ProjectionTable>

const parkingRetry = {
  ...retryTable,
  attempts: integer({ from: 1, to: 1_000_000, default: 5, doc: 'The number of failures after which a key is parked.' }),
  crashes: integer({ from: 1, to: 1000, default: 3, doc: 'The number of process crashes after which a key is parked.' }),
}
/** Five attempts of a projection take a few seconds, in which all its keys wait. */
const projectionRetry = withDefaults(parkingRetry, { initialMs: 200, factor: 3, maxMs: 10_000 })
/** Only failing keys wait. Forty attempts take 17 minutes on average: full jitter halves each delay, and a few long ones vary too much. */
const sinkRetry = withDefaults(parkingRetry, { attempts: 40, maxMs: 60_000 })

export const cursorTable = {
  channel: text({ to: 100, otherwise: 'all', doc: 'Only events of this channel.' }),
  shards: integer({ from: 1, to: 1024, default: 1, doc: 'The number of cursors that share the keys. It cannot change later.' }),
  from: oneOf(['start', 'oldest', 'now'], {
    default: 'start',
    doc: 'The first event of a new cursor: the first ever (an error if it was removed), the oldest kept, or the next.',
  }),
  retry: nested(projectionRetry, { doc: 'The retry policy.' }),
  timeout: duration({
    from: 1,
    to: 86_400_000,
    default: '30s',
    doc: 'How long a handler may take for one event, entity or batch.',
  }),
  maxLag: duration({
    from: 1000,
    to: 3650 * 86_400_000,
    otherwise: 'never',
    doc: 'The lag at which the cursor becomes stale and no longer keeps events from being removed.',
  }),
  breaker: nested(breakerTable, { doc: 'When the cursor pauses instead of parking more keys.' }),
}

const projectionTable = {
  ...cursorTable,
  kind: oneOf(['log', 'state'], {
    default: 'log',
    doc: "'log' applies each event once, in order. 'state' refreshes the entities that events changed.",
  }),
  generation: integer({ from: 1, to: 1_000_000, default: 1, doc: 'The generation. Raise it to rebuild.' }),
  tables: list(nested(projectionTableTable, { doc: 'A table.' }), { doc: 'The tables that it writes, for rebuilds.' }),
}

export const logTuningTable = {
  batchMax: integer({ from: 1, to: 5000, default: 500, doc: 'The maximum number of events in one transaction.' }),
} satisfies TableOf<NonNullable<LogProjectionOptions['tuning']>>

const handler = callback<EventHandler>({ doc: 'One handler for all events.' })

const handlers = {
  on: mapOf(handler, {
    expects: 'an object with a function per type of event',
    doc: 'A handler for each type of event. Other types are skipped.',
  }),
  each: handler,
  tuning: tuning(logTuningTable),
}

export const logTable = {
  ...projectionTable,
  ...handlers,
  batch: callback<BatchHandler>({ doc: 'One handler for many events in order. If it fails, it gets them one by one.' }),
} satisfies TableOf<LogProjectionOptions>

export const reactionTable = {
  ...withDefaults(cursorTable, { from: 'oldest' }),
  ...handlers,
} satisfies TableOf<ReactionOptions>

export const stateTuningTable = {
  batchMax: integer({ from: 1, to: 5000, default: 500, doc: 'The maximum number of entities in one `refreshMany`.' }),
} satisfies TableOf<NonNullable<StateProjectionOptions['tuning']>>

const concurrency = integer({
  from: 1,
  to: 1000,
  default: 4,
  doc: 'The maximum number of entities refreshed at once in a process.',
})

export const stateTable = {
  ...projectionTable,
  entity: required(callback<StateProjectionOptions['entity']>({ doc: 'Returns the entity that an event changes, or several.' })),
  refresh: callback<NonNullable<StateProjectionOptions['refresh']>>({
    doc: "Reads the entity's current state and writes what follows from it.",
  }),
  refreshMany: callback<NonNullable<StateProjectionOptions['refreshMany']>>({
    doc: 'Refreshes many entities in one transaction, one refresher at a time. If it fails, it gets them one by one.',
  }),
  concurrency,
  tuning: tuning(stateTuningTable),
} satisfies TableOf<StateProjectionOptions>

export const markDelay = duration({ from: 0, to: 30 * 86_400_000, default: 0, doc: 'How long the refresh waits.' })

export const sinkTable = {
  ...withDefaults(cursorTable, { from: 'oldest' }),
  retry: nested(sinkRetry, { doc: 'The retry policy.' }),
  handle: required(callback<SinkOptions['handle']>({ doc: 'Called for every event, in the order of its key, at least once.' })),
  concurrency: { ...concurrency, default: 16, doc: 'The maximum number of events handled at once in a shard.' },
} satisfies TableOf<SinkOptions>

const generation = integer({ from: 1, to: 1_000_000, otherwise: 'all', doc: 'Only this generation.' })
const timeout = duration({
  from: 0,
  to: 86_400_000,
  default: '30s',
  doc: 'How long to wait until both generations are at the same position.',
})

export const actTable = {
  reason: reason('The reason, stored in pawl.audit.'),
  by: text({ to: 200, doc: 'The acting person or program, stored in pawl.audit.' }),
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

export const parkedTable = {
  after: text({ to: 2000, otherwise: 'the first page', doc: '`next` of the previous page.' }),
  limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The maximum number of keys to list.' }),
}

export const seenTable = {
  timeout: duration({ from: 0, to: 86_400_000, default: '5s', doc: 'How long to wait.' }),
  signal: signal({ doc: 'Ends the wait.' }),
} satisfies TableOf<WaitOptions>

export const generationTable = { ...actTable, generation: required(generation) }

export const compareTable = { generation: required(generation), timeout }

export const switchTable = {
  ...generationTable,
  timeout,
  mayDiffer: boolean({ default: false, doc: 'true: switch even if rows differ.' }),
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
