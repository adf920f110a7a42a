// What every change of a scope does in its transaction: hold the scope's lock, find its slot free, keep its attributes, append its events.

import type { TxDb } from '../db/db.ts'
import { numbersLiteral, statement, textsLiteral, type Values } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { read } from '../kernel/retry.ts'
import type { DefinedSet, Registry } from './sets.ts'
import type { FailureClass } from './types.ts'

const scopeLockStatement = statement(import.meta.url, 'scope-lock')
const slotStatement = statement(import.meta.url, 'slot')
const submissionEventStatement = statement(import.meta.url, 'submission-event')
const recordEventsStatement = statement(import.meta.url, 'record-events')
const stagedEventsStatement = statement(import.meta.url, 'staged-events')

/** For a statement over all rows of a submission, of which there may be millions: a quarter of an hour. */
export const wholeMs = 15 * 60_000

/** Events appended by one statement. */
const eventRows = 500

/**
 * For a transaction whose writes no reader sees before a later one commits, which does wait for the disk: a crash of the server loses the end of its
 * log, so it never loses this and keeps that. The work that goes on after a crash must notice what is lost.
 */
export const inert = { settings: 'set local synchronous_commit = off' }

export interface LockedScope {
  readonly id: string
  readonly scope: string
  readonly revision: number
  readonly committed: string
  readonly attributes: string | null
}

export async function lockScope(tx: TxDb, tenant: string, scopeId: string): Promise<LockedScope> {
  const [scope] = await tx.run<LockedScope>(scopeLockStatement, { tenant, scope_id: scopeId })
  if (scope === undefined) throw new PawlError('PAWL_NOT_FOUND', 'The scope does not exist.')
  return { ...scope, revision: Number(scope.revision) }
}

// ---- the slot

interface Holder {
  id: string
  job_id: string
  job_state: string
}

/** Without the scope's lock it may be another at once. */
export async function slotHolder(registry: Registry, tenant: string, scopeId: string): Promise<string | undefined> {
  const [holder] = await read<Holder>(registry.pool, slotStatement, { tenant, scope_id: scopeId })
  return holder?.id
}

/** Under the scope's lock: a transaction that writes a number must know that no other number is in progress. */
export async function assertSlotFree(tx: TxDb, tenant: string, scope: LockedScope): Promise<void> {
  const [holder] = await tx.run<Holder>(slotStatement, { tenant, scope_id: scope.id })
  if (holder === undefined) return
  throw new PawlError(
    'PAWL_SCOPE_BUSY',
    `Submission ${holder.id} is being applied to this scope. Try again when it is done; records.why('${holder.id}') says what it waits for.`,
    { details: { holder: holder.id, jobId: holder.job_id, jobState: holder.job_state, scope: scope.scope } },
  )
}

// ---- attributes, each of which is set once: by the commit of the first submission that names it, so that an invalid one binds nothing

type Attributes = Readonly<Record<string, string>>

/** As JSON; null where none is given. */
export function attributesText(set: DefinedSet, attributes: Attributes = {}): string | null {
  for (const name of Object.keys(attributes)) {
    if (!set.attributes.includes(name)) throw new PawlError('PAWL_CONFIG', `A scope of '${set.name}' has no attribute '${name}'.`)
  }
  const text = JSON.stringify(attributes)
  return text === '{}' ? null : text
}

/** Both as JSON. One that is not stored yet may have any value. */
export function assertAttributes(given: string | null, stored: string | null): void {
  if (given === null) return
  const bound = JSON.parse(stored ?? '{}') as Attributes
  const isOther = ([name, value]: [string, string]) => Object.hasOwn(bound, name) && bound[name] !== value
  if (!Object.entries(JSON.parse(given) as Attributes).some(isOther)) return
  throw new PawlError(
    'PAWL_SCOPE_ATTRIBUTES',
    `The attributes of this scope are ${stored ?? '{}'} and cannot change to ${given}. Leave them out, or use another scope.`,
    { details: { given: JSON.parse(given) as unknown, stored: bound } },
  )
}

// ---- events: the scope is the key of every one, because its lock is what orders its commits

interface About {
  readonly tenant: string
  readonly set: string
  readonly scope: string
  readonly submission: string
}

interface Committed extends About {
  readonly number: string
  readonly counts: Readonly<Record<'created' | 'updated' | 'unchanged' | 'deleted', number>>
  /** What was written. Looking for it by its number would read every record of the scope, for each put. */
  readonly changed: 'staged' | readonly { readonly id: string; readonly type: string; readonly key: string }[]
}

async function appendEvent(tx: TxDb, type: string, { tenant, set, scope, submission }: About, more: object): Promise<void> {
  const payload = JSON.stringify({ set, scope: JSON.parse(scope) as unknown, submission, ...more })
  await tx.run(submissionEventStatement, { tenant, record_set: set, scope, type, payload })
}

export async function failureEvent(
  tx: TxDb,
  events: DefinedSet['events'],
  failed: About & { readonly failureClass: FailureClass; readonly error: string },
): Promise<void> {
  if (events === 'none') return
  // Without its stack, which says where and not what.
  const error = failed.error.split('\n', 1)[0]!.slice(0, 500).toWellFormed()
  await appendEvent(tx, 'submission.failed', failed, { failureClass: failed.failureClass, error })
}

export async function commitEvents(tx: TxDb, events: DefinedSet['events'], committed: Committed): Promise<void> {
  if (events === 'none') return
  const { tenant, set, scope, number, counts, changed } = committed
  await appendEvent(tx, 'submission.committed', committed, { number, ...counts })
  if (events !== 'record') return
  const about = { tenant, record_set: set, scope, number }
  if (changed === 'staged') return stagedEvents(tx, { ...about, id: committed.submission, limit: eventRows })
  for (let from = 0; from < changed.length; from += eventRows) {
    const some = changed.slice(from, from + eventRows)
    await tx.run(recordEventsStatement, {
      ...about,
      record_ids: numbersLiteral(some.map(({ id }) => id)),
      types: textsLiteral(some.map(({ type }) => type)),
      keys: textsLiteral(some.map(({ key }) => key)),
    })
  }
}

async function stagedEvents(tx: TxDb, values: Values): Promise<void> {
  for (let after = '0'; ; ) {
    const [last] = await tx.run<{ line: string | null }>(stagedEventsStatement, { ...values, after })
    if (last!.line === null) return
    after = last!.line
  }
}
