// What operators do to projections and sinks: pause, resume, skip, unpark, forget. Each is one transaction that also keeps who did it and why.

import { unavailable } from '../db/classify.ts'
import type { Db } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { PawlError } from '../errors.ts'
import { readLog } from '../events/read-log.ts'
import { filterOf, type LogBounds, logBounds } from './cursor.ts'
import { kindPrefix } from './definition.ts'
import { readProjection } from './generations/register.ts'
import type { Act, CursorKind, ResumeFrom } from './types.ts'

const statements = {
  pause: statement(import.meta.url, 'pause'),
  awaitRefreshes: statement(import.meta.url, 'await-refreshes'),
  lockStopped: statement(import.meta.url, 'lock-stopped'),
  resume: statement(import.meta.url, 'resume'),
  audit: statement(import.meta.url, 'audit'),
  cursors: statement(import.meta.url, 'cursors'),
  unpark: statement(import.meta.url, 'unpark'),
  unparkKey: statement(import.meta.url, 'unpark-key'),
  skipParked: statement(import.meta.url, 'skip-parked'),
  skipNext: statement(import.meta.url, 'skip-next'),
  noteSkipped: statement(import.meta.url, 'note-skipped'),
  lock: statement(import.meta.url, 'lock-generations'),
  definingRunners: statement(import.meta.url, 'defining-runners'),
  remove: statement(import.meta.url, 'remove-generation'),
  forget: statement(import.meta.url, 'forget-projection'),
} as const

export interface CursorInfo {
  readonly generation: number
  readonly shard: number
  readonly shards: number
  readonly kind: CursorKind
  readonly channel: string | null
  readonly state: string
  readonly position: string
  readonly event_id: string | null
}

/** A process that hangs in here holds cursors, and every handler waits for it: the server ends it. */
const settings = "set local idle_in_transaction_session_timeout = '10s'"

/** One transaction of ours on the callers' pool. PAWL_COMMIT_UNKNOWN: its commit had no answer. */
export function inTransaction<T>(pool: Pool, work: (tx: Transaction) => Promise<T>): Promise<T> {
  return pool.transaction(work, { settings }).catch((error: unknown) => {
    throw unavailable(error)
  })
}

export interface Target {
  readonly tenant: string
  readonly name: string
}

export async function audit(runs: Db, target: Target, action: string, act: Act, detail: object): Promise<void> {
  await runs.run(statements.audit, {
    tenant: target.tenant,
    actor: act.by ?? null,
    action: `projection.${action}`,
    subject: target.name,
    reason: act.reason,
    detail: JSON.stringify(detail),
  })
}

export async function cursorsOf(runs: Db, target: Target, generation: number | null = null): Promise<CursorInfo[]> {
  const rows = await runs.run<CursorInfo>(statements.cursors, { tenant: target.tenant, name: target.name, generation })
  if (rows.length > 0) return rows
  throw noSuch(target, generation)
}

function noSuch({ name }: Target, generation: number | null = null): PawlError {
  const which = generation === null ? '' : ` generation ${generation} of`
  return new PawlError(
    'PAWL_NOT_FOUND',
    `There is no${which} projection or sink '${name}'. A worker that defines it creates it when it starts.`,
  )
}

export async function pause(pool: Pool, target: Target, act: Act, generation: number | null): Promise<void> {
  await inTransaction(pool, async (runs) => {
    const rows = await runs.run(statements.pause, { ...target, generation, reason: act.reason })
    if (rows.length === 0) throw await notInState(runs, target, 'paused', 'running')
    await audit(runs, target, 'pause', act, { generation })
  })
  await inTransaction(pool, (runs) => runs.run(statements.awaitRefreshes, { ...target, generation }))
}

export async function resume(
  pool: Pool,
  target: Target,
  act: Act & { readonly from?: ResumeFrom | undefined },
  generation: number | null,
): Promise<void> {
  await inTransaction(pool, async (runs) => {
    await runs.run(statements.lockStopped, { ...target, generation })
    const bounds = await logBounds(runs)
    const { before, head } = bounds
    const from = placeToResume(target, act.from, bounds)
    const cursors = await cursorsOf(runs, target, generation)
    for (const { state, position } of cursors) {
      if (state === 'running' || from !== null || Number(position) >= before) continue
      throw new PawlError(
        'PAWL_WRONG_STATE',
        `'${target.name}' is at position ${position}, but events up to ${before} have been removed. To continue without them, pass from: 'oldest' or from: 'now'.`,
      )
    }
    const rows = await runs.run<{ position: string }>(statements.resume, { ...target, generation, head, from_position: from })
    if (rows.length === 0) throw await notInState(runs, target, 'resumed', 'paused, stale or latched')
    const stood = cursors.map(({ position }) => Number(position))
    await audit(runs, target, 'resume', act, { generation, stood, positions: rows.map(({ position }) => Number(position)) })
  })
}

/** The position after which it goes on; null: where it stands. */
function placeToResume({ name }: Target, from: ResumeFrom | undefined, { before, head }: LogBounds): number | null {
  if (from === undefined) return null
  if (from === 'now') return head
  if (from === 'oldest') return before
  if (from >= before && from <= head) return from
  throw new PawlError(
    'PAWL_WRONG_STATE',
    `'${name}' cannot resume after position ${from}: the log has positions ${before + 1} to ${head}. Pass from as a position from ${before} to ${head}, 'oldest' or 'now'.`,
  )
}

export async function unpark(
  pool: Pool,
  target: Target,
  which: { readonly key: string | null; readonly keyTenant: string | null },
  act: Act,
): Promise<string[]> {
  return inTransaction(pool, async (runs) => {
    await cursorsOf(runs, target)
    const rows = await runs.run<{ key: string }>(statements.unpark, { ...target, key: which.key, key_tenant: which.keyTenant })
    const keys = rows.map(({ key }) => key)
    if (keys.length === 0 && which.key !== null)
      throw new PawlError('PAWL_NOT_FOUND', `The key '${which.key}' of '${target.name}' is not parked.`)
    await audit(runs, target, 'unpark', act, { keys: keys.slice(0, 100), count: keys.length })
    return keys
  })
}

/** Deletes a parked event, or moves a projection past its next event. Later generations skip it too. */
export async function skip(pool: Pool, target: Target, position: number, act: Act): Promise<void> {
  await inTransaction(pool, async (runs) => {
    const parked = await runs.run<{ generation: number; shard: number; key_tenant: string; key: string }>(statements.skipParked, {
      ...target,
      position,
    })
    for (const { generation, shard, key_tenant, key } of parked)
      await runs.run(statements.unparkKey, { ...target, generation, shard, key_tenant, key })
    if (parked.length === 0) await skipNext(runs, target, position)
    const { events } = await readLog(runs, { after: position - 1, limit: 1 })
    if (events[0]?.position === position) await runs.run(statements.noteSkipped, { ...target, position, event_id: events[0].id })
    await audit(runs, target, 'skip', act, { position, parked: parked.length > 0 })
  })
}

async function skipNext(runs: Db, target: Target, position: number): Promise<void> {
  for (const cursor of await cursorsOf(runs, target)) {
    if (cursor.kind === 'sink') continue
    const filter = filterOf({ ...cursor, tenant: target.tenant })
    const { events } = await readLog(runs, { after: Number(cursor.position), limit: 1, ...filter })
    const [event] = events
    if (event?.position !== position) continue
    const rows = await runs.run(statements.skipNext, {
      ...target,
      generation: cursor.generation,
      shard: cursor.shard,
      from_position: Number(cursor.position),
      to_position: position,
      event_id: event.id,
      log_generation: event.generation,
    })
    if (rows.length > 0) return
  }
  throw new PawlError(
    'PAWL_NOT_FOUND',
    `Event ${position} cannot be skipped: it is neither parked for '${target.name}' nor the next event to apply. It may have been applied already.`,
  )
}

/** A worker that starts at the same time waits for the lock, and finds that it is gone (register.ts). */
export async function forget(pool: Pool, target: Target, act: Act): Promise<void> {
  if (target.name.startsWith(ownPrefix)) throw runByPawl(target)
  await inTransaction(pool, async (runs) => {
    const locked = await runs.run(statements.lock, { ...target, generation: null })
    if (locked.length === 0) throw noSuch(target)
    const generations = await readProjection(runs, target)
    // In a snapshot of its own, taken after the lock.
    const runners = await runs.run<{ id: number; name: string }>(statements.definingRunners, { prefix: kindPrefix(target) })
    if (runners.length > 0)
      throw new PawlError(
        'PAWL_WRONG_STATE',
        `'${target.name}' is still defined by running processes: ${runners.map(({ id, name }) => `${name} (worker ${id})`).join(', ')}. Remove it from their code and restart them, then forget it.`,
        { details: { runners } },
      )
    await runs.run(statements.remove, { ...target, generation: null })
    await runs.run(statements.forget, { ...target })
    await audit(runs, target, 'forget', act, { positions: generations.map(({ position }) => Number(position)) })
  })
}

/** What Pawl defines for itself, as 'pawl.documents'. */
const ownPrefix = 'pawl.'

/** Without its cursor, stored copies would stay as they are, in silence. */
function runByPawl({ name }: Target): PawlError {
  return new PawlError(
    'PAWL_WRONG_STATE',
    `'${name}' is a projection that Pawl runs for itself, and cannot be forgotten. Run a worker of a process that defines ${name.slice(ownPrefix.length)}.`,
    { details: { name } },
  )
}

async function notInState(runs: Db, target: Target, verb: string, from: string): Promise<PawlError> {
  const states = [...new Set((await cursorsOf(runs, target)).map(({ state }) => state))]
  return new PawlError(
    'PAWL_WRONG_STATE',
    `'${target.name}' is ${states.join(' and ')} and cannot be ${verb}: it must be ${from}.`,
  )
}
