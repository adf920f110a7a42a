// Writes of many documents: postMany, each by itself and set by set; putAll, all or none.

import { statement } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { refused } from '../kernel/options.ts'
import { probe } from '../kernel/probe.ts'
import type { ModelType } from './model.ts'
import { Nodes } from './nodes.ts'
import { checkUuid } from './reads.ts'
import { keepTypes, keepTypesAgain } from './stored-types.ts'
import type { Change, Outcome, Written } from './types.ts'
import {
  find,
  insertAll,
  keepKey,
  type Matched,
  matchedDocument,
  type Ready,
  readyOf,
  resolve,
  send,
  sendAll,
  triesMax,
  type Writing,
  writeDocument,
  writeText,
  writtenOrThrow,
} from './write.ts'
import { checkedBody, type Draft, draftOf } from './writes/draft.ts'
import type { Answer } from './writes/refusals.ts'
import * as refusals from './writes/refusals.ts'
import { assertOneOwner } from './writes/unified.ts'

const writeStatement = statement(import.meta.url, 'write-documents')
const putStatement = statement(import.meta.url, 'put-documents')

const postMax = 10_000
const putMax = 100
const chunkDocuments = 1000
/** A jsonb array takes 256 MB, and a character up to 4 bytes. */
const chunkLength = 16 * 1_048_576

export async function postMany(writing: Writing, type: ModelType, bodies: readonly unknown[]): Promise<Outcome[]> {
  if (!Array.isArray(bodies) || bodies.length > postMax)
    throw refused('documents.postMany', `bodies must be an array of at most ${postMax}`)
  await keepTypes(writing.registry, writing.tenant)
  const outcomes: Outcome[] = []
  for (let after = 0; after < bodies.length; ) {
    const nodes = new Nodes(writing.registry.model)
    const chunk = new Map<number, Draft>()
    for (let length = 0; after < bodies.length && chunk.size < chunkDocuments && length < chunkLength; after++) {
      const index = after
      await outcomeOf(outcomes, index, async () => {
        const draft = draftOf(writing.registry, nodes, type, await checkedBody(type, bodies[index]))
        chunk.set(index, draft)
        length += sentLength(draft)
        return undefined
      })
    }
    if (chunk.size > 0) await postChunk(writing, type, nodes, chunk, outcomes)
  }
  return outcomes
}

/** Each reference is sent with its path and type, beside the body. */
function sentLength({ body, links }: Draft): number {
  return links.reduce((length, { path, reference }) => length + path.join().length + reference.type.length + 100, body.length)
}

/** New documents in one statement, existing ones in another; what lost a race, or names another of the same chunk, follows one by one. */
async function postChunk(
  writing: Writing,
  type: ModelType,
  nodes: Nodes,
  chunk: ReadonlyMap<number, Draft>,
  outcomes: Outcome[],
): Promise<void> {
  const found = await find(writing, nodes, undefined)
  if (probe.on) await probe.hit('documents.found', { type: type.name })
  const fresh = new Map<number, Ready>()
  const known = new Map<number, Ready>()
  const later: number[] = []
  const seen = new Set<number>()
  const own = new Set([...chunk.values()].map(({ node }) => node))
  for (const [index, draft] of chunk) {
    const ready = readyOf(draft, nodes, found)
    const isAgain = seen.has(draft.node)
    seen.add(draft.node)
    if ('missing' in ready && ready.missing.some(({ node }) => !own.has(node)))
      await outcomeOf(outcomes, index, async () => void (await resolve(writing, draft, nodes, found)))
    else if ('missing' in ready || isAgain) later.push(index)
    else
      await outcomeOf(outcomes, index, async () => {
        assertOneOwner(writing.registry.model, nodes, draft, found.ids)
        ;(found.ids[draft.node] === null ? fresh : known).set(index, ready)
        return undefined
      })
  }
  // Existing ones first: in a caller's transaction documents are locked before keys, as in every other write.
  if (known.size > 0) later.push(...(await settle(writing, known, await writeKnown(writing, known), outcomes)))
  if (fresh.size > 0) later.push(...(await settle(writing, fresh, await insertAll(writing, type, [...fresh.values()]), outcomes)))
  for (const index of later.sort((a, b) => a - b))
    await outcomeOf(outcomes, index, () =>
      writeDocument(writing, type, JSON.parse(chunk.get(index)!.body), { receipt: found.receipt, isChecked: true }),
    )
}

/** In order of id: two calls that write the same documents do not deadlock. */
async function writeKnown(writing: Writing, known: ReadonlyMap<number, Ready>): Promise<Answer[]> {
  const order = [...known.values()]
    .map((ready, position) => ({ ready, position, own: ready.ids[ready.draft.node]! }))
    .sort((a, b) => (BigInt(a.own) < BigInt(b.own) ? -1 : 1))
  const writes = order.map(({ ready, own }) => writeText(writing, ready, { own, matched: null }))
  const answers: Answer[] = []
  for (const [index, answer] of (await sendAll<Answer>(writing, writeStatement, { writes: `[${writes.join(',')}]` })).entries())
    answers[order[index]!.position] = answer
  return answers
}

/** Returns those that start again. */
async function settle(
  writing: Writing,
  readies: ReadonlyMap<number, Ready>,
  answers: readonly Answer[],
  outcomes: Outcome[],
): Promise<number[]> {
  const again: number[] = []
  for (const [position, [index, ready]] of [...readies].entries()) {
    const answer = answers[position]!
    if (answer.outcome === 'moved' || answer.outcome === 'model') again.push(index)
    else await outcomeOf(outcomes, index, () => writtenOrThrow(writing, ready, answer, {}))
  }
  return again
}

/** An error of Pawl's is this document's outcome; any other ends the call. */
async function outcomeOf(outcomes: Outcome[], index: number, work: () => Promise<Written | undefined>): Promise<void> {
  try {
    const written = await work()
    if (written !== undefined) outcomes[index] = { ok: true, ...written }
  } catch (error) {
    if (!isPawlError(error) || error.status >= 500) throw error
    outcomes[index] = { ok: false, error }
  }
}

export async function putAll(writing: Writing, changes: readonly Change[]): Promise<Written[]> {
  const { registry, tenant } = writing
  if (!Array.isArray(changes) || changes.length > putMax)
    throw refused('documents.putAll', `changes must be an array of at most ${putMax}`)
  await keepTypes(registry, tenant)
  const all = await Promise.all(
    changes.map(async ({ type: given, body, ...rest }) => {
      const type = registry.typeOf('putAll', given)
      return { ...rest, uuid: checkUuid('putAll', rest.uuid), type, given: await checkedBody(type, body) }
    }),
  )
  if (new Set(all.map(({ uuid }) => uuid.toLowerCase())).size < all.length)
    throw refused('documents.putAll', 'changes must name each UUID once')
  let receipt: string | undefined
  for (let tried = 1; tried <= triesMax; tried++) {
    const nodes = new Nodes(registry.model)
    const drafts = all.map(({ type, given }) => draftOf(registry, nodes, type, given))
    const matched: (Matched | null)[] = []
    for (const { type, uuid, ifMatch } of all) matched.push(await matchedDocument(writing, type, uuid, ifMatch))
    const found = await find(writing, nodes, receipt)
    receipt = found.receipt
    const readies: Ready[] = []
    for (const draft of drafts) readies.push(await resolve(writing, draft, nodes, found))
    assertDistinct(readies)
    if (probe.on) await probe.hit('documents.found', { type: 'putAll' })
    const writes = readies.map((ready, index) => writeText(writing, ready, { uuid: all[index]!.uuid, matched: matched[index]! }))
    const answer = await send<Answer[] | { readonly n: number; readonly answer: Answer }>(writing, putStatement, {
      writes: `[${writes.join(',')}]`,
    })
    if (Array.isArray(answer))
      return Promise.all(answer.map((each, index) => writtenOrThrow(writing, readies[index]!, each, all[index]!)))
    const { outcome } = answer.answer
    if (outcome === 'ignore') {
      for (const [n, { type, given, uuid }] of all.entries())
        if (type.options.keyChange === 'ignore') all[n] = { ...all[n]!, given: await keepKey(writing, type, given, uuid) }
    } else if (outcome === 'model') await keepTypesAgain(registry, tenant)
    else if (outcome !== 'moved') await writtenOrThrow(writing, readies[answer.n]!, answer.answer, all[answer.n]!)
  }
  throw refusals.gaveUp(all[0]!.type, triesMax)
}

/** Two documents of one call cannot end with one key. Where a type ignores changes of keys, it is not the key of the body. */
function assertDistinct(readies: readonly Ready[]): void {
  const seen = new Map<string, Ready>()
  for (const ready of readies) {
    if (ready.draft.type.options.keyChange === 'ignore') continue
    for (const { hash, type } of ready.identities) {
      const other = seen.get(hash)
      if (other !== undefined)
        throw new PawlError(
          'PAWL_KEY_TAKEN',
          `putAll: two documents would have the key ${JSON.stringify(ready.draft.key).slice(0, 200)} of ${type}. Nothing was written.`,
          {
            details: { type, key: ready.draft.key },
          },
        )
      seen.set(hash, ready)
    }
  }
}
