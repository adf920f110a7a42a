// Writes. Each is two statements: find the documents that a body names, then write under locks. What changed between the two is asked again
// there, and the write starts again.

import type { AnyTx } from '../db/adapters.ts'
import { dbOf } from '../db/db.ts'
import { numbersLiteral, type Statement, statement, type Values } from '../db/statement.ts'
import type { PawlError } from '../errors.ts'
import { refused } from '../kernel/options.ts'
import { probe } from '../kernel/probe.ts'
import { read, retryingDefinite } from '../kernel/retry.ts'
import { keyHash } from './canonical.ts'
import { etagOf } from './fill.ts'
import type { ModelType } from './model.ts'
import { Nodes } from './nodes.ts'
import { getDocument, keyAs } from './reads.ts'
import type { Registry } from './registry.ts'
import { keepTypes, keepTypesAgain, shapeHash } from './stored-types.ts'
import type { Written } from './types.ts'
import { checkedBody, type Draft, draftOf, type Link, withKeyOf } from './writes/draft.ts'
import type { Answer } from './writes/refusals.ts'
import * as refusals from './writes/refusals.ts'
import { assertOneOwner, boundOf, isBound } from './writes/unified.ts'

const findStatement = statement(import.meta.url, 'find-documents')
const insertStatement = statement(import.meta.url, 'insert-documents')
const writeStatement = statement(import.meta.url, 'write-documents')
const deleteStatement = statement(import.meta.url, 'delete-document')

/** A write starts again this often when keys change under it. */
export const triesMax = 5

/** Of one call. */
export interface Writing {
  readonly registry: Registry
  readonly tenant: string
  readonly tx: AnyTx | undefined
}

export interface Conditions {
  readonly ifMatch?: string | undefined
  readonly ifNoneMatch?: '*' | undefined
  readonly receipt?: string | undefined
  /** The body is as its schema returned it. */
  readonly isChecked?: boolean
}

export interface Found {
  readonly receipt: string
  /** By node; null: there is none. */
  readonly ids: readonly (string | null)[]
}

/** One document to write, with what was found for it. */
export interface Ready extends Found {
  readonly draft: Draft
  readonly nodes: Nodes
  /** Each key that it will answer to; `refs`: the ids of the documents that the key refers to. */
  readonly identities: readonly {
    readonly type: string
    readonly hash: string
    readonly parts: object
    readonly refs: readonly string[]
  }[]
  /** By link; null: the document itself. */
  readonly to: readonly (string | null)[]
}

/** The document whose etag ifMatch is. */
export interface Matched {
  readonly uuid: string
  readonly revision: number
}

/** Without a UUID it is a POST. */
export async function writeDocument(
  writing: Writing,
  type: ModelType,
  body: unknown,
  conditions: Conditions & { readonly uuid?: string },
): Promise<Written> {
  const { registry, tenant } = writing
  await keepTypes(registry, tenant)
  const { uuid, ifMatch } = conditions
  let given = conditions.isChecked ? body : await checkedBody(type, body)
  let { receipt } = conditions
  for (let tried = 1; tried <= triesMax; tried++) {
    const nodes = new Nodes(registry.model)
    const draft = draftOf(registry, nodes, type, given)
    const matched = await matchedDocument(writing, type, uuid ?? draft, ifMatch)
    const found = await find(writing, nodes, receipt)
    receipt = found.receipt
    const ready = await resolve(writing, draft, nodes, found)
    if (probe.on) await probe.hit('documents.found', { type: type.name, key: draft.key })
    const own = found.ids[draft.node] ?? null
    const isNew = uuid === undefined && own === null
    if (isNew && ifMatch !== undefined) throw refusals.precondition(type, 'there is no such document for ifMatch', null)
    const answer = isNew
      ? await insertOne(writing, ready)
      : await send<Answer>(writing, writeStatement, {
          writes: `[${writeText(writing, ready, { ...conditions, matched, own })}]`,
        })
    if (answer.outcome === 'model') await keepTypesAgain(registry, tenant)
    if (answer.outcome === 'moved' || answer.outcome === 'model') continue
    if (answer.outcome === 'ignore') given = await keepKey(writing, type, given, answer.uuid!)
    else return await writtenOrThrow(writing, ready, answer, conditions)
  }
  throw refusals.gaveUp(type, triesMax)
}

/** The etag is compared with what a reader sees; the write asks for the same revision again, under the document's lock. */
export async function matchedDocument(
  writing: Writing,
  type: ModelType,
  which: string | Draft,
  ifMatch: string | undefined,
): Promise<Matched | null> {
  if (ifMatch === undefined || ifMatch === '*') return null
  const document = await getDocument(writing, type, typeof which === 'string' ? which : which.key)
  if (document?.etag === ifMatch) return { uuid: document.uuid, revision: Number(ifMatch.slice(0, ifMatch.indexOf('.'))) }
  throw refusals.precondition(
    type,
    `ifMatch is ${ifMatch.slice(0, 100)}, but the etag is ${document?.etag ?? 'none'}`,
    document?.etag ?? null,
  )
}

/** The body with the key that the document has now. */
export async function keepKey(writing: Writing, type: ModelType, body: unknown, uuid: string): Promise<unknown> {
  const document = await getDocument(writing, type, uuid)
  if (document === undefined) throw refusals.notFound(type, uuid)
  return withKeyOf(type, body as Readonly<Record<string, unknown>>, document.body as Readonly<Record<string, unknown>>)
}

export async function find(writing: Writing, nodes: Nodes, receipt: string | undefined): Promise<Found> {
  const { registry, tenant, tx } = writing
  const values = { tenant, ...nodes.values, receipt: receipt ?? null, is_old: false }
  type Row = { readonly receipt: string | null; readonly ids: string }
  const [row] = await (tx === undefined
    ? read<Row>(registry.pool, findStatement, values)
    : dbOf(tx).run<Row>(findStatement, values))
  if (row!.receipt === null)
    throw refused('documents', `receipt must be one that receipt() returned, got '${receipt}'`, { option: 'receipt' })
  return { receipt: row!.receipt, ids: JSON.parse(row!.ids) as (string | null)[] }
}

/** Throws PAWL_REFERENCE_UNRESOLVED with the bad references only. */
export async function resolve(writing: Writing, draft: Draft, nodes: Nodes, found: Found): Promise<Ready> {
  const ready = readyOf(draft, nodes, found)
  if (!('missing' in ready)) {
    assertOneOwner(writing.registry.model, nodes, draft, found.ids)
    return ready
  }
  const renamedTo = await Promise.all(
    ready.missing.slice(0, 10).map(async ({ reference, key }) => {
      const { model } = writing.registry
      const target = model.get(reference.type)!
      const document = await getDocument(writing, target, key)
      return document?.byOldKey ? keyAs(model, document, target) : undefined
    }),
  )
  throw refusals.unresolved(draft.type, ready.missing, renamedTo)
}

export function readyOf(draft: Draft, nodes: Nodes, found: Found): Ready | { readonly missing: readonly Link[] } {
  const { ids } = found
  const missing = draft.links.filter(({ node }) => ids[node] === null && !isOwn(draft, nodes, node))
  if (missing.length > 0) return { missing }
  const identities = draft.identities.map(({ type, parts, own, refs }) => {
    const targets = refs.map((node) => ids[node]!)
    return { type, hash: keyHash(own, targets).toString('hex'), parts, refs: targets }
  })
  return { ...found, draft, nodes, identities, to: draft.links.map(({ node }) => ids[node]!) }
}

/** A reference to the document itself, by a key that it is about to have. */
function isOwn({ identities }: Draft, nodes: Nodes, node: number): boolean {
  const { own, refs } = nodes.list[node]!
  return identities.some((identity) => identity.own.equals(own) && identity.refs.join() === refs.join())
}

/** Only what nothing refers to. */
export async function deleteDocument(
  writing: Writing,
  type: ModelType,
  uuid: string,
  ifMatch: string | undefined,
): Promise<void> {
  const matched = await matchedDocument(writing, type, uuid, ifMatch)
  const values = { type: type.name, shape: shapeHash(type), uuid, revision: matched?.revision ?? null }
  let answer = await send<Answer>(writing, deleteStatement, values)
  for (let tried = 1; answer.outcome === 'model' && tried < triesMax; tried++) {
    await keepTypesAgain(writing.registry, writing.tenant)
    answer = await send<Answer>(writing, deleteStatement, values)
  }
  if (answer.outcome === 'model') throw refusals.gaveUp(type, triesMax)
  if (answer.outcome === 'deleted') return
  if (answer.outcome === 'referenced') throw refusals.referenced(type, uuid, answer)
  if (answer.outcome === 'missing' && ifMatch === undefined) throw refusals.notFound(type, uuid)
  throw refusals.precondition(
    type,
    answer.outcome === 'missing'
      ? 'there is no such document for ifMatch'
      : 'the document has changed since ifMatch was compared',
    null,
  )
}

// ---- what is sent

function linksText({ draft, to }: Ready): string {
  return JSON.stringify(
    draft.links.map(({ path, reference }, index) => ({
      path,
      to: to[index],
      type: reference.type,
      in_key: reference.inKey,
      names: reference.names,
    })),
  )
}

/** The fields that an insert and a write have in common. The body is JSON already. */
function commonText(ready: Ready): string {
  const { draft, identities, receipt } = ready
  const rest = JSON.stringify({ receipt, content: draft.content, keys: draft.keys, identities })
  return `{"body":${draft.body},"links":${linksText(ready)},${rest.slice(1)}`
}

export function writeText(
  { registry }: Writing,
  ready: Ready,
  { uuid, own, matched, ifNoneMatch }: Conditions & { uuid?: string; own?: string | null; matched: Matched | null },
): string {
  const { type } = ready.draft
  const { keyChange, oldKeys } = type.options
  const isPost = uuid === undefined
  const more = {
    type: type.name,
    shape: shapeHash(type),
    // With ifMatch a POST writes the document that was read, whatever has its key by now: that is asked under its lock.
    ...(isPost && matched === null ? { id: own } : { uuid: uuid ?? matched!.uuid }),
    is_post: isPost,
    is_new_only: ifNoneMatch === '*',
    revision: matched?.revision ?? null,
    policy: keyChange,
    old_ms: oldKeys,
    bound: boundOf(registry.model, type),
    ...heldBy([ready]),
  }
  return `${commonText(ready).slice(0, -1)},${JSON.stringify(more).slice(1)}`
}

/** What is locked before the write: direct targets; of a bound type, every node of its keys, which are found again under their locks. */
function heldBy(all: readonly Ready[]): { readonly targets: string; readonly nodes: object | null } {
  const [{ draft, nodes, ids }] = all as readonly [Ready, ...Ready[]]
  const own = new Set(all.map((ready) => ready.draft.node))
  if (!isBound(draft.type)) {
    const targets = new Set(all.flatMap(({ to, ids, draft }) => to.filter((id) => id !== null && id !== ids[draft.node])))
    return { targets: numbersLiteral([...targets]), nodes: null }
  }
  // Those of the other documents of a postMany are not: sent and found for each, a thousand took seconds, or more than a jsonb array may have.
  const reached = nodes.reached(all.flatMap(({ draft }) => [draft.node, ...draft.links.map(({ node }) => node)]))
  // Its own key may change with this write, and its row is locked by it.
  const others = reached.map((node) => (own.has(node) ? null : ids[node]!))
  const owned = new Set(all.map((ready) => ids[ready.draft.node]))
  const targets = new Set(others.filter((id) => id !== null && !owned.has(id)))
  return { targets: numbersLiteral([...targets]), nodes: { ...nodes.valuesOf(reached), ids: numbersLiteral(others) } }
}

export async function send<T>(writing: Writing, sent: Statement, values: Values): Promise<T> {
  return (await sendAll<T>(writing, sent, values))[0]!
}

export async function sendAll<T>(writing: Writing, sent: Statement, values: Values): Promise<T[]> {
  const rows = await runWrite<{ answer: string }>(writing, sent, values)
  return rows.map(({ answer }) => JSON.parse(answer) as T)
}

/** Sent again only while it is certain that nothing was stored: a second time it would be refused, or say 'unchanged'. */
function runWrite<Row>({ registry, tenant, tx }: Writing, sent: Statement, values: Values): Promise<Row[]> {
  const given = { tenant, ...values }
  return tx === undefined ? retryingDefinite(() => registry.pool.run<Row>(sent, given)) : dbOf(tx).run<Row>(sent, given)
}

async function insertOne(writing: Writing, ready: Ready): Promise<Answer> {
  const [answer] = await insertAll(writing, ready.draft.type, [ready])
  return answer!
}

/** New documents of one type, in one statement. */
export async function insertAll(writing: Writing, type: ModelType, all: readonly Ready[]): Promise<Answer[]> {
  const { registry, tenant } = writing
  const { targets, nodes } = heldBy(all)
  const values = {
    type: type.name,
    shape: shapeHash(type),
    docs: `[${all.map(commonText).join(',')}]`,
    targets,
    nodes: nodes === null ? null : JSON.stringify(nodes),
  }
  type Row = {
    readonly n: number
    readonly outcome: Answer['outcome']
    readonly uuid: string | null
    readonly holder: string | null
  }
  const rows = await runWrite<Row>(writing, insertStatement, values)
  if (rows.some(({ outcome }) => outcome === 'model')) await keepTypesAgain(registry, tenant)
  const answers: Answer[] = []
  for (const { n, outcome, uuid, holder } of rows)
    answers[n - 1] = {
      outcome: outcome === 'model' ? 'moved' : outcome,
      ...(uuid === null ? {} : { uuid, revision: 1, is_key_changed: false }),
      holder: holder === null ? null : (JSON.parse(holder) as NonNullable<Answer['holder']>),
    }
  return answers
}

// ---- what is answered

export async function writtenOrThrow(
  writing: Writing,
  ready: Ready,
  answer: Answer,
  { uuid, ifMatch }: Conditions & { uuid?: string },
): Promise<Written> {
  const { type } = ready.draft
  switch (answer.outcome) {
    case 'created':
    case 'updated':
    case 'unchanged':
      return written(ready, answer)
    case 'missing':
      if (ifMatch !== undefined) throw refusals.precondition(type, 'there is no such document for ifMatch', null)
      throw refusals.notFound(type, uuid!)
    case 'exists':
    case 'mismatch': {
      const document = await getDocument(writing, type, answer.uuid!)
      const problem =
        answer.outcome === 'exists' ? 'the document exists already' : 'the document has changed since ifMatch was compared'
      throw refusals.precondition(type, problem, document?.etag ?? null)
    }
    default:
      throw refusalOf(ready, answer)
  }
}

function written({ draft }: Ready, { outcome, uuid, revision, is_key_changed }: Answer): Written {
  return {
    uuid: uuid!,
    outcome: outcome as Written['outcome'],
    isKeyChanged: is_key_changed!,
    etag: etagOf(
      { uuid: uuid!, revision: revision! },
      draft.links.map(({ path, key }) => [path, key] as const),
    ),
    key: draft.key,
  }
}

export function refusalOf({ draft, identities, receipt }: Ready, answer: Answer): PawlError {
  const { type, key } = draft
  switch (answer.outcome) {
    case 'stale':
      return refusals.stale(type, answer, receipt)
    case 'refuse':
      return refusals.immutable(draft, answer, identities[0]!.refs)
    case 'bound':
      return refusals.unified(type, answer)
    case 'taken':
    case 'renamed':
      return refusals.taken(type, key, answer)
    default:
      return refusals.gaveUp(type, triesMax)
  }
}
