// A body as it will be written: its key, its references, and what of it is compared. All that can be wrong with a body alone is found here.

import { isPawlError, PawlError, shown } from '../../errors.ts'
import { toJson } from '../../kernel/payload.ts'
import { contentHash, keyValue, ownHash, referenceMark } from '../canonical.ts'
import { calledBy, type Identity, type Leaf, type ModelType, type Reference } from '../model.ts'
import { keysOf, type Nodes } from '../nodes.ts'
import type { Registry } from '../registry.ts'
import type { Key, KeyValue } from '../types.ts'

/** A reference of this body. */
export interface Link {
  readonly path: readonly string[]
  readonly reference: Reference
  readonly key: Key
  readonly node: number
}

/** A key that the document will answer to. */
export interface DraftIdentity {
  readonly type: string
  readonly parts: Key
  readonly own: Buffer
  /** Nodes of its references, by path. */
  readonly refs: readonly number[]
}

export interface Draft {
  readonly type: ModelType
  readonly key: Key
  readonly keys: Readonly<Record<string, Key>>
  /** As JSON. */
  readonly body: string
  readonly content: string
  readonly links: readonly Link[]
  readonly identities: readonly [DraftIdentity, ...DraftIdentity[]]
  /** The node of its own key. */
  readonly node: number
}

type Json = Readonly<Record<string, unknown>>

const referencesMax = 1000

/** `given` has been checked by its schema. */
export function draftOf(registry: Registry, nodes: Nodes, type: ModelType, given: unknown): Draft {
  const body = plainBody(registry, type, given)
  const { links, marks } = linksOf(registry, nodes, type, body)
  const parts = partsOf(type, type.identities[0], body)
  // In the form of keys: a filter by a part of the key is, too.
  for (const { name, path } of type.identities[0].scalars) putAt(body, path, parts[name]!)
  assertUnified(type, links)
  const key = flatKey(parts, links)
  const text = JSON.stringify(body)
  for (const { at, name, mark } of marks) at[name] = mark
  return {
    type,
    key,
    keys: keysOf(type, key),
    body: text,
    content: contentHash(body).toString('hex'),
    links,
    identities: type.identities.map((identity) => draftIdentity(type, identity, body, links)) as unknown as Draft['identities'],
    node: nodes.add(type, key),
  }
}

/** The body as its schema returns it. */
export async function checkedBody(type: ModelType, body: unknown): Promise<unknown> {
  const { name, options } = type
  if (options.abstract)
    throw invalid(type, '', `cannot be written: ${name} is abstract. Write a document of a type that extends it`)
  if (options.schema === undefined) return body
  const result = await options.schema['~standard'].validate(body)
  if (result.issues === undefined) return result.value
  const [issue] = result.issues
  const path = (issue?.path ?? []).map((step) => String(typeof step === 'object' ? step.key : step)).join('.')
  throw refusedBody(name, path, issue?.message ?? 'does not match its schema')
}

/** A copy of our own, as JSON has it. */
function plainBody({ payloadBytesMax }: Registry, { name }: ModelType, body: unknown): Json {
  if (body === undefined) throw refusedBody(name, '', 'must be an object, got undefined')
  try {
    const copy: unknown = JSON.parse(toJson(body, 'body', { bytesMax: payloadBytesMax }))
    if (isObject(copy)) return copy
  } catch (error) {
    if (!isPawlError(error, 'PAWL_INVALID_PAYLOAD')) throw error
    throw refusedBody(name, String(error.details.path).replace(/^\./, ''), String(error.details.reason), error)
  }
  throw refusedBody(name, '', `must be an object, got ${shown(body)}`)
}

/** Where the value of a reference is, for the canonical body. */
interface Mark {
  readonly at: Record<string, unknown>
  readonly name: string
  readonly mark: symbol
}

function linksOf(registry: Registry, nodes: Nodes, type: ModelType, body: Json) {
  const links: Link[] = []
  const marks: Mark[] = []
  for (const reference of type.references) {
    const target = registry.model.get(reference.type)!
    const places = placesOf(type, reference, body).filter((place) => (ownValue(place) ?? null) !== null)
    if (reference.inKey && places.length === 0) throw invalid(type, reference.path, 'is part of the key and must be there')
    for (const { at, name, path } of places) {
      const value = at[name]
      const key = referenceKey(type, target, path, value)
      // In the form of keys, as a refresh would write it.
      at[name] = isObject(value) ? key : key[target.key[0]!]
      marks.push({ at, name, mark: isObject(value) ? referenceMark.object : referenceMark.scalar })
      links.push({ path, reference, key, node: nodes.add(target, key) })
    }
  }
  if (links.length > referencesMax) throw invalid(type, '', `has ${links.length} references, at most ${referencesMax}`)
  return { links, marks }
}

interface Place {
  readonly at: Record<string, unknown>
  readonly name: string
  readonly path: readonly string[]
}

/** Where a reference is in this body: in each element of the arrays on its path. */
function placesOf(type: ModelType, { segments }: Reference, body: Json): Place[] {
  let places: Place[] = [{ at: { body }, name: 'body', path: [] }]
  for (const segment of segments) {
    places = places.flatMap((outer) => {
      const { path } = outer
      const parent = ownValue(outer)
      if (parent === undefined || parent === null) return []
      if (!isObject(parent)) throw invalid(type, path.join('.'), `must be an object, got ${shown(parent)}`)
      const place = { at: parent, name: segment.name, path: [...path, segment.name] }
      return segment.isMany ? elementsOf(type, place) : [place]
    })
  }
  return places
}

/** Every object has a 'constructor' by its prototype, which is not in the body. */
function ownValue({ at, name }: Omit<Place, 'path'>): unknown {
  return Object.hasOwn(at, name) ? at[name] : undefined
}

function elementsOf(type: ModelType, place: Place): Place[] {
  const { path } = place
  const list = ownValue(place)
  if (list === undefined || list === null) return []
  if (!Array.isArray(list)) throw invalid(type, path.join('.'), `must be an array, got ${shown(list)}`)
  return list.map((_, index) => ({ at: list as never, name: String(index), path: [...path, String(index)] }))
}

/** An object with exactly the target's key, or the scalar itself where that key has one field. */
function referenceKey(type: ModelType, target: ModelType, path: readonly string[], value: unknown): Key {
  const fields = isObject(value) ? value : target.key.length === 1 ? { [target.key[0]!]: value } : undefined
  const where = path.join('.')
  if (fields === undefined) throw invalid(type, where, `must be an object with ${target.key.join(', ')}, got ${shown(value)}`)
  const other = Object.keys(fields).find((field) => !target.key.includes(field))
  if (other !== undefined)
    throw invalid(type, `${where}.${other}`, `is not a field of the key of ${target.name}: ${target.key.join(', ')}`)
  return Object.fromEntries(target.key.map((field) => [field, partOf(type, `${where}.${field}`, fields[field])]))
}

function partOf(type: ModelType, path: string, given: unknown): KeyValue {
  const checked = keyValue(given)
  if ('value' in checked) return checked.value
  throw invalid(type, path, checked.reason)
}

function partsOf(type: ModelType, identity: Identity, body: Json): Key {
  return Object.fromEntries(
    identity.scalars.map(({ name, path }) => [name, partOf(type, path.join('.'), scalarAt(type, body, path))]),
  )
}

function scalarAt(type: ModelType, body: Json, path: readonly string[]): unknown {
  let value: unknown = body
  for (const [depth, name] of path.entries()) {
    if (!isObject(value)) throw invalid(type, path.slice(0, depth).join('.'), `must be an object, got ${shown(value)}`)
    value = value[name]
  }
  return value
}

/** Where a scalar was read. */
function putAt(body: Json, path: readonly string[], value: KeyValue): void {
  const at = path.slice(0, -1).reduce((inner, name) => inner[name] as Json, body)
  ;(at as Record<string, unknown>)[path.at(-1)!] = value
}

function flatKey(parts: Key, links: readonly Link[]): Key {
  const key: Record<string, KeyValue> = { ...parts }
  for (const { reference, key: target } of links)
    if (reference.inKey) for (const [field, value] of Object.entries(target)) key[calledBy(reference.names, field)] = value
  return key
}

/** Unified names have one value. That one document holds it is asked when they are found. */
function assertUnified(type: ModelType, links: readonly Link[]): void {
  for (const [a, b] of type.rules) {
    const [first, ...rest] = [...leavesOf(links, a), ...leavesOf(links, b)]
    const other = rest.find(({ value }) => value !== first!.value)
    if (other !== undefined) throw twoValues(type, first!, other)
  }
}

interface LeafValue {
  readonly path: string
  readonly value: KeyValue
}

function leavesOf(links: readonly Link[], { reference, field }: Leaf): LeafValue[] {
  return links
    .filter((link) => link.reference === reference)
    .map(({ path, key }) => ({ path: `${path.join('.')}.${field}`, value: key[field]! }))
}

function twoValues(type: ModelType, a: LeafValue, b: LeafValue): PawlError {
  const reason = `must be ${shown(a.value)}, as ${a.path} is, got ${shown(b.value)}`
  return new PawlError('PAWL_DOCUMENT_INVALID', `${type.name}: ${b.path} ${reason}.`, {
    details: { type: type.name, path: b.path, reason, paths: [a.path, b.path], values: [a.value, b.value] },
  })
}

function draftIdentity(type: ModelType, identity: Identity, body: Json, links: readonly Link[]): DraftIdentity {
  const parts = partsOf(type, identity, body)
  const refs = identity.references.map((reference) => links.find((link) => link.reference === reference)!.node)
  return { type: identity.type, parts, own: ownHash(identity.type, parts), refs }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function invalid({ name }: ModelType, path: string, reason: string): PawlError {
  return refusedBody(name, path, reason)
}

export function refusedBody(type: string, path: string, reason: string, cause?: unknown): PawlError {
  const where = path.slice(0, 200)
  return new PawlError('PAWL_DOCUMENT_INVALID', `${type}: ${where === '' ? 'the body' : where} ${reason}.`, {
    ...(cause === undefined ? {} : { cause }),
    details: { type, path: where, reason },
  })
}

/** The body with the key of the stored one: scalars and references of the identity. */
export function withKeyOf(type: ModelType, body: Json, stored: Json): Json {
  const [{ scalars, references }] = type.identities
  const paths = [...scalars.map(({ path }) => path), ...references.map(({ segments }) => segments.map(({ name }) => name))]
  const copy = structuredClone(body) as Record<string, unknown>
  for (const path of paths) {
    let [from, to] = [stored as Record<string, unknown>, copy]
    for (const name of path.slice(0, -1)) {
      from = from[name] as Record<string, unknown>
      to[name] ??= {}
      to = to[name] as Record<string, unknown>
    }
    to[path.at(-1)!] = from[path.at(-1)!]
  }
  return copy
}
