// Start and rerun: batch and items are written as queued, and the last statement lets the batch run, leaves it in the queue, or refuses it, under
// the track's lock. All in one transaction: a starter that dies leaves nothing.

import type { AnyTx } from '../db/adapters.ts'
import type { TxDb } from '../db/db.ts'
import { statement, textsLiteral } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { assertParses } from '../jobs/kinds.ts'
import { byBytes } from '../jobs/settle.ts'
import { check, number, type Resolved, refused, required, text } from '../kernel/options.ts'
import { atIndex, invalid, toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { read, transactIn } from '../kernel/retry.ts'
import { callOf, type DefinedBatch, type Registry } from './definition.ts'
import { itemsMax, type rerunTable, type startTable } from './options.ts'
import { findBatch, needBatch } from './reads.ts'
import type { BatchReport, NewItem, Started } from './types.ts'

const insertStatement = statement(import.meta.url, 'insert')
const itemsStatement = statement(import.meta.url, 'insert-items')
const rerunStatement = statement(import.meta.url, 'insert-rerun')
const rerunItemsStatement = statement(import.meta.url, 'insert-rerun-items')
const startStatement = statement(import.meta.url, 'start-batch')
const stateStatement = statement(import.meta.url, 'state')
const markEndingStatement = statement(import.meta.url, 'mark-ending')
const runningStatement = statement(import.meta.url, 'running')

const chunkItems = 1000
/** A cancel or a replacement waits for the lock of a batch this often, 250 ms each: transactions of items hold it. */
export const endTriesMax = 6
/** About how long an end takes that another transaction has begun. */
const retryAfterMs = 1000

const itemKey = required(text({ to: 500, doc: 'The key of an item.' }))
const itemFields = new Set(['key', 'data', 'units', 'before'])
const itemUnits = number({ from: 0, to: 1e15, doc: 'The units of an item.' })

interface Verdict {
  readonly verdict: 'started' | 'queue' | 'refuse' | 'replace' | 'busy' | 'full'
  readonly blocker: string | null
}

interface Starting {
  readonly tenant: string
  readonly track: string
  readonly id: string
  /** In a transaction of ours. */
  readonly is_own: boolean
}

interface Refused {
  readonly refusal: PawlError
  /** The batch whose lock a replacement could not get. */
  readonly replacing?: string
}

export async function startBatch(
  registry: Registry,
  tenant: string,
  batch: DefinedBatch,
  items: Iterable<NewItem>,
  options: Resolved<typeof startTable>,
): Promise<Started> {
  const call = callOf('start', batch.name)
  const { chunks, total, units } = await readItems(registry, batch, call, items)
  const { track = batch.track, policy = batch.policy, by = null, tx } = options
  const values = {
    tenant,
    track,
    policy,
    by,
    name: batch.name,
    queue: batch.item.queue,
    step: batch.prepare === undefined ? 'step' : 'prepare',
    total,
    units: units + options.units,
    allowance: JSON.stringify(batch.allowance),
    meta: metaText(registry, call, options.meta),
  }
  return startIn(registry, tenant, tx, async (db) => {
    const [running] = policy === 'refuse' ? await db.run<{ id: string }>(runningStatement, { tenant, track }) : []
    if (running !== undefined) return { refusal: await trackBusy(db, tenant, track, running.id) }
    const [row] = await db.run<{ id: string }>(insertStatement, values)
    const { id } = row!
    if (probe.on) await probe.hit('batches.start.inserted', { id })
    for (const chunk of chunks) await db.run(itemsStatement, { tenant, id, ...chunk })
    if (probe.on) await probe.hit('batches.start.items', { id })
    return settleStart(db, { tenant, track, id, is_own: tx === undefined })
  })
}

/** Of an ended batch, and by what its row says: the process need not define it. */
export async function rerunBatch(
  registry: Registry,
  tenant: string,
  of: string,
  options: Resolved<typeof rerunTable>,
): Promise<Started> {
  const { only, policy = null, by = null, tx } = options
  const meta = metaText(registry, callOf('rerun', of), options.meta)
  const batch = await needBatch(registry.pool, tenant, of)
  const outcomes = textsLiteral(only === 'both' ? ['failed', 'unfinished'] : [only])
  return startIn(registry, tenant, tx, async (db) => {
    const [row] = await db.run<{ id: string }>(rerunItemsStatement, { tenant, of, only: outcomes })
    if (row === undefined) throw notAgain(batch, only)
    await db.run(rerunStatement, { tenant, id: row.id, of, policy, meta, by })
    return settleStart(db, { tenant, track: batch.track, id: row.id, is_own: tx === undefined })
  })
}

function metaText({ payloadBytesMax: bytesMax }: Registry, call: string, meta: unknown): string | null {
  return meta === undefined ? null : toJson(meta, `${call}: meta`, { bytesMax })
}

function notAgain({ id, name, state, endedAt }: BatchReport, only: Resolved<typeof rerunTable>['only']): PawlError {
  const which = only === 'both' ? 'failed or unfinished' : only
  const message =
    endedAt === null
      ? `Batch ${id} is ${state}: only a batch that has ended can run again. Cancel it first.`
      : `Batch ${id} has nothing to run again: it has no ${which} item whose key no later batch of '${name}' has done.`
  return new PawlError('PAWL_WRONG_STATE', message, { details: { id, state } })
}

/** A refused start commits: it may have ended an overdue batch and started the next. One that replaces waits for the lock of the running batch. */
async function startIn(
  registry: Registry,
  tenant: string,
  tx: AnyTx | undefined,
  work: (db: TxDb) => Promise<Started | Refused>,
): Promise<Started> {
  const { pool, finisher } = registry
  finisher.poll(registry)
  for (let tried = 1; ; tried++) {
    const answer = await transactIn(pool, tx, work)
    if (!('refusal' in answer)) return answer
    const { refusal, replacing } = answer
    if (replacing !== undefined) await read(pool, markEndingStatement, { tenant, id: replacing })
    if (replacing === undefined || tx !== undefined || tried === endTriesMax) throw refusal
  }
}

async function settleStart(db: TxDb, start: Starting): Promise<Started | Refused> {
  const { tenant, track, id, is_own } = start
  const [row] = await db.run<Verdict>(startStatement, { tenant, id, is_own })
  if (probe.on) await probe.hit('batches.start.written', { id })
  const { verdict, blocker } = row!
  if (verdict !== 'started' && verdict !== 'queue') {
    const refusal = await trackBusy(db, tenant, track, blocker, verdict)
    return verdict === 'replace' && blocker !== null ? { refusal, replacing: blocker } : { refusal }
  }
  const [now] = await db.run<{ state: Started['state']; deadline: Date | string | null }>(stateStatement, { tenant, id })
  return { id, state: now!.state, deadline: now!.deadline === null ? null : new Date(now!.deadline) }
}

async function trackBusy(db: TxDb, tenant: string, track: string, id: string | null, verdict = 'refuse'): Promise<PawlError> {
  const blocker = id === null ? undefined : await findBatch(db, tenant, id)
  if (verdict === 'full')
    return new PawlError('PAWL_TRACK_BUSY', `Track '${track}' has 1,000 batches in its queue. Cancel some, or start later.`, {
      details: { track, blocker: id, queued: 1000 },
    })
  const isLocked = verdict === 'busy' || verdict === 'replace'
  const { name, counts, startedAt, deadline } = blocker ?? {}
  const until = deadline == null ? '' : ` until ${deadline.toISOString()} at the latest`
  const [about, fix] =
    blocker === undefined
      ? ['an open transaction holds it, such as that of another start', 'Try again when it has ended']
      : isLocked
        ? [`batch ${blocker.id} ('${name}') has to end first, and an open transaction holds it`, 'Try again']
        : [`batch ${blocker.id} ('${name}') runs on it${until}`, 'Start later, cancel it, or use the policy queue']
  return new PawlError('PAWL_TRACK_BUSY', `Track '${track}' is busy: ${about}. ${fix}.`, {
    details: { track, blocker: id, name, counts, startedAt, deadline, ...(isLocked ? { retryAfterMs } : {}) },
  })
}

/** Everything is checked before anything is written into a transaction that may be the caller's. */
async function readItems(
  { payloadBytesMax: bytesMax }: Registry,
  { name, schema }: DefinedBatch,
  call: string,
  items: Iterable<NewItem>,
) {
  if (typeof items !== 'object' || items === null || !(Symbol.iterator in items))
    throw refused(call, `items must be an array or another iterable of items, got ${shown(items)}`)
  const keys = new Set<string>()
  const texts: string[] = []
  let units = 0
  for (const item of items) {
    const index = texts.length
    if (index === itemsMax) throw invalid(`${call}: items`, '', `must be at most ${itemsMax}`)
    try {
      checkFields(call, index, item)
      const { key, data = null, before = null } = item
      check(call, `items[${index}].key`, itemKey, key)
      if (keys.has(key)) throw invalid(`${call}: items`, `[${index}].key`, `repeats '${key}'`)
      keys.add(key)
      const own = check(call, `items[${index}].units`, itemUnits, item.units) ?? 0
      units += own
      texts.push(toJson({ key, data, before, units: own }, `${call}: item`, { bytesMax }))
      if (schema !== undefined) await assertParses({ name, schema, noun: 'data' }, data, JSON.stringify(data))
    } catch (error) {
      throw atIndex(error, index)
    }
  }
  let upto = 0
  // A jsonb array takes 256 MB.
  const chunks = [...byBytes(texts, chunkItems, Buffer.byteLength)].map((chunk) => {
    const after = upto
    upto += chunk.length
    return { after, items: `[${chunk.join(',')}]` }
  })
  return { chunks, total: upto, units }
}

/** A misspelled field would be dropped in silence. */
function checkFields(call: string, index: number, item: unknown): void {
  if (typeof item !== 'object' || item === null)
    throw refused(call, `items[${index}] must be an object with a key, got ${shown(item)}`)
  for (const field in item)
    if (!itemFields.has(field))
      throw refused(call, `items[${index}] has no field ${shown(field)}. The fields of an item are ${[...itemFields].join(', ')}`)
}
