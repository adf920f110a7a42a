// The options of batches, as tables.

import { kindTable, standardSchema } from '../jobs/options.ts'
import {
  anyText,
  callback,
  duration,
  integer,
  nested,
  number,
  oneOf,
  ownTx,
  reason,
  record,
  required,
  type TableOf,
  text,
} from '../kernel/options.ts'
import type { PageOptions } from '../kernel/pages.ts'
import { batchStates } from './states.ts'
import type {
  Allowance,
  BatchHandlers,
  BatchOptions,
  EndOptions,
  ExtendOptions,
  ItemHandler,
  ItemOptions,
  ListBatchesOptions,
  ListItemsOptions,
  RerunOptions,
  StartOptions,
  StuckOptions,
} from './types.ts'

const dayMs = 86_400_000
export const allowanceMsMax = 30 * dayMs
export const itemsMax = 1_000_000
const policies = ['refuse', 'queue', 'replace'] as const

// The defaults of seed 004; the time of a unit is the median of a record in its portal.
export const allowanceTable = {
  perItemMs: number({ from: 0, to: allowanceMsMax, default: 10_000, doc: 'Milliseconds for each item.' }),
  perUnitMs: number({ from: 0, to: allowanceMsMax, default: 0.5574226379394531, doc: 'Milliseconds for each unit.' }),
  safety: number({ from: 0, to: 1000, default: 2, doc: 'Multiplies the time for units.' }),
  minMs: integer({ from: 1, to: allowanceMsMax, default: 1, doc: 'The shortest allowance.' }),
  maxMs: integer({ from: 1, to: allowanceMsMax, default: allowanceMsMax, doc: 'The longest allowance.' }),
} satisfies TableOf<Allowance>

const itemHandlerTable = {
  run: callback<NonNullable<ItemHandler['run']>>({ doc: 'The handler. Its effects may be anywhere, and happen at least once.' }),
  tx: callback<NonNullable<ItemHandler['tx']>>({
    doc: 'The handler. Its effects go through its transaction, and happen exactly once.',
  }),
} satisfies TableOf<ItemHandler>

export const itemTable = {
  ...itemHandlerTable,
  retry: kindTable.retry,
  timeout: kindTable.timeout,
  concurrency: kindTable.concurrency,
  queue: kindTable.queue,
} satisfies TableOf<ItemOptions>

const trackName = (doc: string, otherwise?: string) => text({ to: 200, doc, ...(otherwise === undefined ? {} : { otherwise }) })

const stepsTable = {
  prepare: callback<NonNullable<BatchHandlers['prepare']>>({ doc: 'The reversible step before the boundary, at least once.' }),
  boundary: callback<NonNullable<BatchHandlers['boundary']>>({ doc: 'The destructive step, in one transaction.' }),
  restore: callback<NonNullable<BatchHandlers['restore']>>({
    doc: 'Restores items of a batch that ended before its boundary, each once.',
  }),
  onEnd: callback<NonNullable<BatchHandlers['onEnd']>>({ doc: 'Called exactly once, after the end is committed.' }),
} satisfies TableOf<Omit<BatchHandlers, 'item'>>

export const handlersTable = {
  item: required(nested(itemHandlerTable, { doc: 'How one item is done.' })),
  ...stepsTable,
} satisfies TableOf<BatchHandlers>

export const batchTable = {
  item: nested(itemTable, { doc: 'How one item is done.' }),
  ...stepsTable,
  schema: standardSchema('The schema of the data of an item, checked at the start and at each run.'),
  track: trackName('Batches of one track never run at once.', 'its name'),
  policy: oneOf(policies, { default: 'refuse', doc: 'What a start does while another batch of its track runs.' }),
  allowance: nested(allowanceTable, { doc: 'How long a batch may run, by its size.' }),
} satisfies TableOf<BatchOptions>

const by = text({ to: 200, doc: 'The person who acts.' })
const meta = record({ doc: 'Kept with the batch.' })

export const startTable = {
  units: number({ from: 0, to: 1e15, default: 0, doc: 'Units of work beside those of the items.' }),
  meta,
  track: trackName('The track of this batch.', 'that of its definition'),
  policy: oneOf(policies, { otherwise: 'that of its definition', doc: 'What this start does while another batch runs.' }),
  by,
  tx: ownTx,
} satisfies TableOf<StartOptions>

const pageTable = {
  after: anyText('`next` of the page before.'),
  limit: integer({ from: 1, to: 1000, default: 50, doc: 'The size of a page.' }),
} satisfies TableOf<PageOptions>

export const listTable = {
  name: text({ to: 100, doc: 'Only batches of this name.' }),
  track: trackName('Only batches of this track.'),
  state: oneOf(batchStates, { doc: 'Only batches in this state.' }),
  ...pageTable,
} satisfies TableOf<ListBatchesOptions>

export const itemsTable = {
  outcome: oneOf(['done', 'failed', 'waiting', 'late'], { doc: 'Only items with this outcome.' }),
  ...pageTable,
} satisfies TableOf<ListItemsOptions>

export const stuckTable = {
  name: text({ to: 100, doc: 'Only items of batches of this name.' }),
  olderThan: duration({
    from: 0,
    to: allowanceMsMax,
    default: 0,
    doc: 'Only where the end or the deadline is at least this long ago.',
  }),
  ...pageTable,
} satisfies TableOf<StuckOptions>

export const endTable = {
  by: required(by),
  reason: reason('The reason, kept with the batch.'),
} satisfies TableOf<EndOptions>

export const extendTable = {
  ...endTable,
  for: required(duration({ from: 1, to: allowanceMsMax, doc: 'Added to the deadline, or to now if that has passed.' })),
} satisfies TableOf<ExtendOptions>

export const rerunTable = {
  only: oneOf(['failed', 'unfinished', 'both'], { default: 'both', doc: 'The items that the new batch has.' }),
  policy: oneOf(policies, { otherwise: 'that of the first', doc: 'What this start does while another batch runs.' }),
  meta,
  by,
  tx: ownTx,
} satisfies TableOf<RerunOptions>
