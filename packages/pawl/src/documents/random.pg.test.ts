// Random writes of random types by several connections, against a model in memory. The writes of a round run at the same time; some order of them, one
// after another, must explain every answer and all that readers see then. At rest, what is stored is equal to the model too.

import { type AnyTx, type Documents, type DocumentTypeOptions, isPawlError, type Written } from 'pawl'
import { expect, test } from 'vitest'
import { type TestDatabase, until } from '../../test/support/database.ts'
import { caughtUp, createLog, startRunner } from '../../test/support/projections.ts'

/** Mulberry32: a failure prints its seed, and the same seed makes the same types and writes. */
function randomOf(seed: number) {
  let state = seed
  const next = () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const pick = (n: number) => Math.floor(next() * n)
  return { pick, one: <T>(list: readonly T[]): T => list[pick(list.length)]!, isSo: (chance: number) => next() < chance }
}
type Random = ReturnType<typeof randomOf>

// ---- types

interface Type {
  readonly n: number
  /** The numbers of the types that its key refers to, and that its body does. */
  readonly identity: readonly number[]
  readonly plain: readonly number[]
  readonly isList: boolean
  readonly hasOldKeys: boolean
  /** Whether it extends Base, whose key all such types share. */
  readonly isBase: boolean
}

/** The number of the superclass in `plain`. */
const base = 9

function randomTypes({ pick, isSo }: Random): Type[] {
  return Array.from({ length: 3 + pick(3) }, (_, n) => {
    const lower = Array.from({ length: n }, (_, j) => j)
    const identity = lower.filter(() => isSo(0.5)).slice(0, 2)
    const plain = [...lower, n, base].filter((j) => !identity.includes(j) && isSo(0.5))
    return { n, identity, plain, isList: isSo(0.5), hasOldKeys: isSo(0.4), isBase: identity.length === 0 && isSo(0.7) }
  })
}

/** Fields of a target have names of their own in the key of what refers to it. */
function fieldsOf(types: readonly Type[], n: number): string[] {
  return [`id${n}`, ...types[n]!.identity.flatMap((j) => fieldsOf(types, j).map((field) => `${field}_${n}${j}`))]
}

function optionsOf(types: readonly Type[], { n, identity, plain, isList, hasOldKeys, isBase }: Type): DocumentTypeOptions {
  const inKey = identity.map((j) => {
    const as = Object.fromEntries(fieldsOf(types, j).map((field) => [field, `${field}_${n}${j}`]))
    return [`ref${j}`, { type: `T${j}`, as }] as const
  })
  const others = plain.map((j) => [isList ? `list[].ref${j}` : `ref${j}`, j === base ? 'Base' : `T${j}`] as const)
  return {
    identity: [`id${n}`, ...identity.map((j) => `ref${j}`)],
    references: Object.fromEntries([...inKey, ...others]),
    keyChange: 'cascade',
    oldKeys: hasOldKeys ? '1d' : 0,
    ...(isBase ? { extends: { type: 'Base', as: { [`id${n}`]: 'baseId' } } } : {}),
  }
}

// ---- the model

/** References are UUIDs, so a rename is of one document. */
interface Doc {
  readonly type: number
  readonly id: number
  readonly n: number
  readonly identity: readonly string[]
  readonly plain: readonly (string | null)[]
}

interface State {
  readonly types: readonly Type[]
  readonly docs: ReadonlyMap<string, Doc>
  /** Old keys, oldest first, and whose they are. */
  readonly old: ReadonlyMap<string, string>
}

type Key = Readonly<Record<string, number>>

/** What a client sends: references by key. */
interface Sent {
  readonly type: number
  readonly id: number
  readonly n: number
  readonly identity: readonly Key[]
  readonly plain: readonly (Key | null)[]
}

type Op =
  | { readonly verb: 'post'; readonly sent: Sent }
  | { readonly verb: 'put'; readonly uuid: string; readonly sent: Sent }
  | { readonly verb: 'putAll'; readonly changes: readonly { readonly uuid: string; readonly sent: Sent }[] }
  | { readonly verb: 'delete'; readonly uuid: string; readonly type: number }

function keyOf(state: State, doc: Doc): Key {
  return sentKey(state.types, { ...doc, identity: doc.identity.map((uuid) => keyOf(state, state.docs.get(uuid)!)) })
}

function sentKey(types: readonly Type[], { type, id, identity }: Pick<Sent, 'type' | 'id' | 'identity'>): Key {
  const key: Record<string, number> = { [`id${type}`]: id }
  for (const [index, j] of types[type]!.identity.entries())
    for (const [field, value] of Object.entries(identity[index]!)) key[`${field}_${type}${j}`] = value
  return key
}

function sentOf(state: State, doc: Doc): Sent {
  const key = (uuid: string) => keyOf(state, state.docs.get(uuid)!)
  const { plain } = state.types[doc.type]!
  const others = doc.plain.map((uuid, index) => (uuid === null ? null : keyAs(state, plain[index]!, state.docs.get(uuid)!)))
  return { ...doc, identity: doc.identity.map(key), plain: others }
}

function keyAs(state: State, type: number, doc: Doc): Key {
  return type === base ? { baseId: doc.id } : keyOf(state, doc)
}

const isOf = (types: readonly Type[], type: number, doc: Doc) => (type === base ? types[doc.type]!.isBase : doc.type === type)

/** What it answers to: its own key first. */
function identsOf(types: readonly Type[], { type, id, identity }: Doc): string[] {
  return [`${type} ${id} ${identity.join()}`, ...(types[type]!.isBase ? [`Base ${id}`] : [])]
}

function bodyOf(types: readonly Type[], sent: Sent): Record<string, unknown> {
  const { identity, plain, isList } = types[sent.type]!
  const inKey = identity.map((j, index) => [`ref${j}`, sent.identity[index]] as const)
  const others = plain.flatMap((j, index) => (sent.plain[index] === null ? [] : [[`ref${j}`, sent.plain[index]] as const]))
  const list = { list: others.map(([name, key]) => ({ [name]: key })) }
  return { [`id${sent.type}`]: sent.id, n: sent.n, ...Object.fromEntries(inKey), ...(isList ? list : Object.fromEntries(others)) }
}

/** The document that a client means, if its keys are looked up in `seen`. Undefined: a reference leads nowhere, or to what is gone by now. */
function resolved(state: State, seen: State, sent: Sent, self: string): Doc | undefined {
  const own = JSON.stringify(sentKey(state.types, sent))
  const find = (j: number, key: Key) => {
    const text = JSON.stringify(key)
    for (const [uuid, doc] of seen.docs)
      if (isOf(seen.types, j, doc) && JSON.stringify(keyAs(seen, j, doc)) === text && state.docs.has(uuid)) return uuid
    // A key that it is about to have is its own.
    const isOwn = j === base ? state.types[sent.type]!.isBase && key.baseId === sent.id : j === sent.type && text === own
    return isOwn ? self : undefined
  }
  const { identity, plain } = state.types[sent.type]!
  const inKey = identity.map((j, index) => find(j, sent.identity[index]!))
  const others = plain.map((j, index) => (sent.plain[index] === null ? null : find(j, sent.plain[index]!)))
  if ([...inKey, ...others].includes(undefined)) return undefined
  return { type: sent.type, id: sent.id, n: sent.n, identity: inKey as string[], plain: others as (string | null)[] }
}

interface Result {
  /** Outcomes, or the code of the refusal. */
  readonly answer: string
  readonly state: State
}

/** What a write answers, and what is there then. `uuid` is that of a document that it created. */
function simulate(state: State, seen: State, op: Op, uuid: string | undefined): Result {
  const refused = (answer: string): Result => ({ answer, state })
  if (op.verb === 'delete') {
    const others = [...state.docs].filter(([other]) => other !== op.uuid)
    if (!state.docs.has(op.uuid)) return refused('PAWL_NOT_FOUND')
    if (others.some(([, doc]) => [...doc.identity, ...doc.plain].includes(op.uuid))) return refused('PAWL_REFERENCED')
    return { answer: 'deleted', state: { ...state, docs: new Map(others), old: without(state.old, op.uuid) } }
  }
  const sent = op.verb === 'putAll' ? op.changes : [{ uuid: op.verb === 'put' ? op.uuid : undefined, sent: op.sent }]
  const docs = sent.map((each) => resolved(state, seen, each.sent, each.uuid ?? uuid ?? 'unknown'))
  if (docs.includes(undefined)) return refused('PAWL_REFERENCE_UNRESOLVED')
  if (op.verb !== 'post')
    return simulatePut(state, op.verb === 'put' ? [op.uuid] : op.changes.map(({ uuid }) => uuid), docs as Doc[])
  const [own, ...others] = identsOf(state.types, docs[0]!) as [string, ...string[]]
  const holder = holderOf(state, own)
  if (holder !== undefined) return simulatePut(state, [holder], docs as Doc[])
  if (state.old.has(own)) return refused('PAWL_KEY_RENAMED')
  if (others.some((ident) => holderOf(state, ident) !== undefined)) return refused('PAWL_KEY_TAKEN')
  if (others.some((ident) => state.old.has(ident))) return refused('PAWL_KEY_RENAMED')
  return { answer: 'created', state: { ...state, docs: new Map(state.docs).set(uuid ?? 'unknown', docs[0]!) } }
}

function holderOf({ types, docs }: State, ident: string): string | undefined {
  for (const [uuid, doc] of docs) if (identsOf(types, doc).includes(ident)) return uuid
  return undefined
}

function simulatePut(state: State, uuids: readonly string[], next: readonly Doc[]): Result {
  const idents = next.map((doc) => identsOf(state.types, doc))
  const claimed = idents.flat()
  const refused = (answer: string): Result => ({ answer, state })
  if (new Set(claimed).size < claimed.length) return refused('PAWL_KEY_TAKEN')
  if (uuids.some((uuid) => !state.docs.has(uuid))) return refused('PAWL_NOT_FOUND')
  const isTaken = (ident: string, uuid: string) => {
    const holder = holderOf(state, ident)
    return (holder !== undefined && !uuids.includes(holder)) || (state.old.get(ident) ?? uuid) !== uuid
  }
  if (idents.some((each, index) => each.some((ident) => isTaken(ident, uuids[index]!)))) return refused('PAWL_KEY_TAKEN')
  const docs = new Map(state.docs)
  const old = new Map(state.old)
  for (const ident of claimed) old.delete(ident)
  const outcomes = uuids.map((uuid, index) => {
    const before = state.docs.get(uuid)!
    if (isSame(before, next[index]!)) return 'unchanged'
    docs.set(uuid, next[index]!)
    const left = identsOf(state.types, before).filter((ident) => !claimed.includes(ident))
    if (state.types[before.type]!.hasOldKeys) for (const ident of left) old.set(ident, uuid)
    return 'updated'
  })
  return { answer: outcomes.join(), state: { ...state, docs, old } }
}

const isSame = (a: Doc, b: Doc) => JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort())
const without = (old: ReadonlyMap<string, string>, uuid: string) => new Map([...old].filter(([, owner]) => owner !== uuid))

// ---- writes

/** `seen` is the state that the client last read. */
function randomOp({ pick, one, isSo }: Random, seen: State): Op | undefined {
  const all = [...seen.docs]
  const of = (j: number) => all.filter(([, doc]) => isOf(seen.types, j, doc)).map(([uuid]) => uuid)
  const draft = (type: number): Doc | undefined => {
    const { identity, plain } = seen.types[type]!
    if (identity.some((j) => of(j).length === 0)) return undefined
    const others = plain.map((j) => (of(j).length > 0 && isSo(0.6) ? one(of(j)) : null))
    return { type, id: pick(5), n: pick(3), identity: identity.map((j) => one(of(j))), plain: others }
  }
  const kind = pick(10)
  if (kind < 4 || all.length === 0) {
    const doc = draft(pick(seen.types.length))
    return doc && { verb: 'post', sent: sentOf(seen, doc) }
  }
  const [uuid, before] = one(all)
  if (kind === 4) return { verb: 'delete', uuid, type: before.type }
  if (kind < 8) {
    const doc = draft(before.type)!
    const kept = isSo(0.5) ? { identity: before.identity } : isSo(0.5) ? { id: before.id } : {}
    return { verb: 'put', uuid, sent: sentOf(seen, { ...doc, ...kept }) }
  }
  // Numbers rotate among up to three documents, of a type or of any.
  const any = isSo(0.5) ? of(before.type) : all.map(([other]) => other)
  const chosen = [...new Set([uuid, one(any), one(any)])].map((each) => [each, seen.docs.get(each)!] as const)
  const changes = chosen.map(([each, doc], index) => ({
    uuid: each,
    sent: sentOf(seen, { ...doc, id: chosen[(index + 1) % chosen.length]![1].id }),
  }))
  return { verb: 'putAll', changes }
}

interface InTx {
  readonly tx?: AnyTx
}

interface Answered {
  readonly answer: string
  readonly uuid: string | undefined
}

async function run(documents: Documents, types: readonly Type[], op: Op, tx: InTx = {}): Promise<Answered> {
  const of = (all: readonly Written[]) => ({ answer: all.map(({ outcome }) => outcome).join(), uuid: all[0]!.uuid })
  const body = (sent: Sent) => bodyOf(types, sent)
  try {
    if (op.verb === 'post') return of([await documents.post(`T${op.sent.type}`, body(op.sent), tx)])
    if (op.verb === 'put') return of([await documents.put(`T${op.sent.type}`, op.uuid, body(op.sent), tx)])
    if (op.verb === 'putAll') {
      const changes = op.changes.map(({ uuid, sent }) => ({ type: `T${sent.type}`, uuid, body: body(sent) }))
      return of(await documents.putAll(changes, tx))
    }
    await documents.delete(`T${op.type}`, op.uuid, tx)
    return { answer: 'deleted', uuid: undefined }
  } catch (error) {
    if (!isPawlError(error) || error.status >= 500) throw error
    return { answer: error.code, uuid: undefined }
  }
}

/** In a transaction of the caller's, which is rolled back: no more than that it was. */
async function runAndRollBack(db: TestDatabase, documents: Documents, types: readonly Type[], op: Op): Promise<Answered> {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await run(documents, types, op, { tx: client })
  } catch (error) {
    // The server chose it to end a deadlock.
    if ((error as { code?: string }).code !== '40P01') throw error
  } finally {
    await client.query('rollback')
    client.release()
  }
  return { answer: rolledBack, uuid: undefined }
}

const rolledBack = 'rolled back'

// ---- what explains a round

const isRefusal = (answer: string) => answer.startsWith('PAWL_')

/** Some order of the writes that explains all answers and what is read then. Of a refusal that a race decided, the code may be another one. */
function explain(state: State, begun: State, ops: readonly Op[], answers: readonly Answered[], seen: string): State | undefined {
  if (ops.length === 0) return textOf(state) === seen ? state : undefined
  for (const [index, op] of ops.entries()) {
    const { answer, uuid } = answers[index]!
    // Keys were looked up when the write began, or since.
    for (const when of begun === state ? [state] : [state, begun]) {
      const result = answer === rolledBack ? { answer, state } : simulate(state, when, op, uuid)
      const isRace = begun !== state && isRefusal(answer) && (isRefusal(result.answer) || answer === 'PAWL_STALE_WRITE')
      if (result.answer !== answer && !isRace) continue
      const next = isRace ? { ...state } : result.state
      const rest = <T>(list: readonly T[]) => list.filter((_, other) => other !== index)
      const found = explain(next === state ? { ...state } : next, begun, rest(ops), rest(answers), seen)
      if (found !== undefined) return found
    }
  }
  return undefined
}

const sorted = (_name: string, value: unknown): unknown =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
    : value

function textOf(state: State): string {
  return JSON.stringify(
    Object.fromEntries([...state.docs].map(([uuid, doc]) => [uuid, bodyOf(state.types, sentOf(state, doc))])),
    sorted,
  )
}

async function read(documents: Documents, types: readonly Type[]): Promise<string> {
  const bodies: Record<string, unknown> = {}
  for (const { n } of types)
    for (const { uuid, body } of (await documents.list(`T${n}`, { limit: 500 })).items) bodies[uuid] = body
  return JSON.stringify(bodies, sorted)
}

async function refreshed(db: TestDatabase): Promise<void> {
  await until('it has begun', async () => (await db.query("select from pawl.cursor where name = 'pawl.documents'"))[0])
  await caughtUp(db, 'pawl.documents')
  await until('nothing is dirty', async () => (await db.query('select from pawl.dirty')).length === 0)
}

test.each([
  { writers: 1, rounds: 70 },
  { writers: 3, rounds: 40 },
  { writers: 4, rounds: 30 },
])('[D5] [D7] [D8] $writers random writes at a time: an order explains them', async ({ writers, rounds }) => {
  const seed = Number(process.env.PAWL_TEST_SEED ?? Math.floor(Math.random() * 2 ** 31))
  const random = randomOf(seed)
  const types = randomTypes(random)
  const db = await createLog('select 1')
  const pawls = [db.pawl(), db.pawl()]
  for (const { documents } of pawls) {
    documents.define('Base', { identity: ['baseId'], abstract: true })
    for (const type of types) documents.define(`T${type.n}`, optionsOf(types, type))
  }
  await startRunner(pawls[0]!)
  let state: State = { types, docs: new Map(), old: new Map() }
  let before = state
  for (let round = 0; round < rounds; round++) {
    // Some clients have not read since the round before.
    const ops = Array.from({ length: writers }, () => randomOp(random, random.isSo(0.2) ? before : state)).filter(
      (op) => op !== undefined,
    )
    const isUndone = ops.map(() => random.isSo(0.1))
    const answers = await Promise.all(
      ops.map((op, n) => {
        const { documents } = pawls[n % 2]!
        return isUndone[n] ? runAndRollBack(db, documents, types, op) : run(documents, types, op)
      }),
    )
    const seen = await read(pawls[0]!.documents, types)
    const next = explain(state, state, ops, answers, seen)
    if (next === undefined)
      throw new Error(
        `seed ${seed}, round ${round}: no order explains ${JSON.stringify({ ops, answers, types, was: textOf(state), seen })}`,
      )
    before = state
    state = next
  }
  await refreshed(db)
  const [{ documents }] = pawls as [(typeof pawls)[0]]
  expect(await documents.verify({ limit: 500 }), `seed ${seed}`).toEqual({ checked: state.docs.size, next: null, faults: [] })
  const stored = await db.query<{ uuid: string; body: unknown }>('select uuid, body from pawl.document')
  const bodies = JSON.stringify(Object.fromEntries(stored.map(({ uuid, body }) => [uuid, body])), sorted)
  expect(bodies, `seed ${seed}`).toBe(textOf(state))
})
