// Reads of documents. Each is one statement, so a body and the keys that fill it are of one snapshot.

import type { AnyTx } from '../db/adapters.ts'
import { dbOf } from '../db/db.ts'
import { numbersLiteral, type Statement, statement, textsLiteral, type Values } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { type Resolved, refused } from '../kernel/options.ts'
import { type Page, pageOf } from '../kernel/pages.ts'
import { read } from '../kernel/retry.ts'
import { keyValue } from './canonical.ts'
import { type ReadRow, toDocuments, unreadable } from './fill.ts'
import { type Model, type ModelType, pathPattern, type Reference } from './model.ts'
import { Nodes } from './nodes.ts'
import type { listTable, referrersTable } from './options.ts'
import type { Registry } from './registry.ts'
import { modelChanged, shapeHash } from './stored-types.ts'
import type { Dependents, Document, DocumentTypeDescription, Key, KeyValue, Referrer, Referrers } from './types.ts'

const byUuidStatement = statement(import.meta.url, 'get-by-uuid')
const byKeyStatement = statement(import.meta.url, 'get-by-key')
const listStatement = statement(import.meta.url, 'list-documents')
const listReferringStatement = statement(import.meta.url, 'list-referring')
const referrersStatement = statement(import.meta.url, 'referrers')
const dependentsStatement = statement(import.meta.url, 'dependents')
const otherTypeStatement = statement(import.meta.url, 'other-type')
const typesStatement = statement(import.meta.url, 'list-types')

const referrersMax = 10_000
const dependentsMax = 100_000
const idMax = 9223372036854775807n

/** Of one call: what it reads with, and whose. */
export interface Reading {
  readonly registry: Registry
  readonly tenant: string
  readonly tx: AnyTx | undefined
}

export async function getDocument(reading: Reading, type: ModelType, which: string | Key): Promise<Document | undefined> {
  const { model } = reading.registry
  if (typeof which === 'string') {
    const values = { types: typesLiteral(model, type), uuid: checkUuid('get', which) }
    return toDocuments(model, await rowsOf<ReadRow>(reading, byUuidStatement, values))[0]
  }
  const nodes = new Nodes(model)
  const key = checkKey('get', 'key', type, which)
  nodes.add(type, key)
  const [found] = toDocuments(model, await rowsOf<ReadRow>(reading, byKeyStatement, nodes.values))
  return found && { ...found, byOldKey: !isSameKey(keyAs(model, found, type), key) }
}

/** As getDocument. That there is none is certain only where this process defines types as their documents were written. */
export async function readDocument(reading: Reading, type: ModelType, which: string | Key): Promise<Document | undefined> {
  const found = await getDocument(reading, type, which)
  if (found === undefined) await assertStored(reading, reachedBy(reading.registry.model, type))
  return found
}

/** One statement more, only where nothing was found. */
async function assertStored(reading: Reading, types: ReadonlySet<ModelType>): Promise<void> {
  const { model } = reading.registry
  const [other] = await rowsOf<{ name: string; stored: string }>(reading, otherTypeStatement, {
    names: textsLiteral([...types].map(({ name }) => name)),
    shapes: textsLiteral([...types].map(shapeHash)),
  })
  if (other !== undefined)
    throw modelChanged(model.get(other.name)!, JSON.parse(other.stored) as Readonly<Record<string, unknown>>)
}

/** A type, those that extend it, and those that its key is made of. */
function reachedBy(model: Model, type: ModelType, reached = new Set(typesAs(model, type))): ReadonlySet<ModelType> {
  for (const { type: target } of type.identities[0].references) {
    const types = typesAs(model, model.get(target)!)
    if (types.every((each) => reached.has(each))) continue
    for (const each of types) reached.add(each)
    reachedBy(model, model.get(target)!, reached)
  }
  return reached
}

export async function listDocuments(
  reading: Reading,
  type: ModelType,
  { where = {}, after, limit }: Resolved<typeof listTable>,
): Promise<Page<Document>> {
  const { model } = reading.registry
  const filters = filtersOf(model, type, where as Readonly<Record<string, unknown>>)
  const page = { types: typesLiteral(model, type), after: checkAfter('list', after), limit: limit + 1, body: filters.body }
  const rows =
    filters.references.length === 0
      ? await rowsOf<ReadRow>(reading, listStatement, page)
      : await rowsOf<ReadRow>(reading, listReferringStatement, { ...page, ...referring(model, filters.references) })
  const ids = rows.flatMap(({ id }) => id ?? [])
  if (ids.length === 0)
    await assertStored(
      reading,
      new Set(
        [type, ...filters.references.map(({ reference }) => model.get(reference.type)!)].flatMap((each) => [
          ...reachedBy(model, each),
        ]),
      ),
    )
  return { items: toDocuments(model, rows).slice(0, limit), next: ids.length > limit ? ids[limit - 1]! : null }
}

/** One reference as the statement lists it; from: the id of its document. */
type ReferrerRow = readonly [type: string, uuid: string, path: readonly string[], from: string]

export async function listReferrers(
  reading: Reading,
  type: ModelType,
  uuid: string,
  { after, limit }: Resolved<typeof referrersTable>,
): Promise<Referrers> {
  const page = { ...afterReference(after), count_max: referrersMax, limit: limit + 1 }
  const values = { ...target(reading, 'referrers', type, uuid), ...page }
  const rows = await rowsOf<{ count: number; items: string | null }>(reading, referrersStatement, values)
  const { count, items } = found(rows, type, uuid)
  const listed = items === null ? [] : (JSON.parse(items) as readonly ReferrerRow[])
  const { items: shown, next } = pageOf(listed, limit, ([, , path, from]) => [from, ...path].join('.'))
  return {
    count: Math.min(count, referrersMax),
    isComplete: count <= referrersMax,
    items: shown.map(([type, uuid, path]): Referrer => ({ type, uuid, path: path.join('.') })),
    next,
  }
}

/** The id of a document and the path of its reference, whose names have no dots. */
function afterReference(after: string | undefined): Values {
  const [id, ...path] = after?.split('.') ?? []
  if (after !== undefined && (after.length > 1000 || !after.isWellFormed() || after.includes('\u0000')))
    throw badValue('referrers', 'after', `must be \`next\` of the page before, got ${shown(after)}`)
  return { after_id: checkAfter('referrers', id), after_path: textsLiteral(path) }
}

export async function countDependents(reading: Reading, type: ModelType, uuid: string): Promise<Dependents> {
  const values = { ...target(reading, 'dependents', type, uuid), count_max: dependentsMax }
  const rows = await rowsOf<{ counted: number; levels: string | null }>(reading, dependentsStatement, values)
  const { counted, levels } = found(rows, type, uuid)
  const listed = levels === null ? [] : (JSON.parse(levels) as readonly (readonly [number, string, number])[])
  return { levels: listed.map(([depth, type, count]) => ({ depth, type, count })), isComplete: counted <= dependentsMax }
}

export async function listTypes(reading: Reading): Promise<DocumentTypeDescription[]> {
  const rows = await rowsOf<{ name: string; changed_at: string; definition: string }>(reading, typesStatement, {})
  return rows.map(({ name, changed_at, definition }) => ({
    name,
    changedAt: new Date(changed_at),
    definition: JSON.parse(definition) as Readonly<Record<string, unknown>>,
  }))
}

/** In the caller's transaction, or by itself. */
export async function rowsOf<Row>({ registry, tenant, tx }: Reading, sent: Statement, values: Values): Promise<Row[]> {
  const given = { tenant, ...values }
  return tx === undefined ? read<Row>(registry.pool, sent, given) : dbOf(tx, 'read').run<Row>(sent, given)
}

// ---- what a call names

export function checkUuid(verb: string, given: unknown): string {
  if (typeof given === 'string' && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(given)) return given
  throw badValue(verb, 'uuid', `must be the UUID of a document, got ${shown(given)}`)
}

export function checkAfter(verb: string, after: string | undefined): string {
  if (after === undefined) return '0'
  if (/^\d{1,19}$/.test(after) && BigInt(after) <= idMax) return after
  throw badValue(verb, 'after', `must be \`next\` of the page before, got ${shown(after)}`)
}

/** A value that may come from a client: of the call and its options, what is wrong is the code's. */
function badValue(verb: string, path: string, reason: string): PawlError {
  return new PawlError('PAWL_DOCUMENT_INVALID', `documents.${verb}: ${path} ${reason}.`, { details: { path, reason } })
}

/** Exactly the fields of the type's flat key. `path`: what the call names it. */
function checkKey(verb: string, path: string, { name, key }: ModelType, given: unknown): Key {
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    throw badValue(verb, path, `must be an object with ${key.join(', ')}, got ${shown(given)}`)
  const missing = key.filter((field) => !Object.hasOwn(given, field))
  const other = Object.keys(given).filter((field) => !key.includes(field))
  const faults = [
    ...(missing.length === 0 ? [] : [`lacks ${missing.join(', ')}`]),
    ...(other.length === 0 ? [] : [`has ${other.join(', ').slice(0, 200)}, which is not in it`]),
  ]
  if (faults.length > 0) throw badValue(verb, path, `${faults.join(', and ')}: the key of ${name} has ${key.join(', ')}`)
  const of = path === 'key' ? '' : `${path}.`
  return Object.fromEntries(key.map((field) => [field, checkValue(verb, `${of}${field}`, (given as Key)[field])]))
}

function checkValue(verb: string, path: string, given: unknown): KeyValue {
  const checked = keyValue(given)
  if ('value' in checked) return checked.value
  throw badValue(verb, path, checked.reason)
}

function isSameKey(a: Key, b: Key): boolean {
  return Object.keys(a).every((field) => a[field] === b[field])
}

/** A document's key by the names of a superclass. */
export function keyAs(model: Model, { type, key }: Document, as: ModelType): Key {
  const identity = model.get(type)!.identities.find((identity) => identity.type === as.name)
  const { names } = identity ?? unreadable(type, `it has a key as ${as.name}, which this process does not let it extend`)
  return Object.fromEntries(Object.entries(names).map(([own, called]) => [called, key[own]!]))
}

/** Itself, and every type that answers to its key. */
export function typesLiteral(model: Model, type: ModelType): string {
  return textsLiteral(typesAs(model, type).map(({ name }) => name))
}

function typesAs(model: Model, type: ModelType): ModelType[] {
  return [...model.values()].filter(({ identities }) => identities.some((identity) => identity.type === type.name))
}

function target({ registry }: Reading, verb: string, type: ModelType, uuid: string): Values {
  return { types: typesLiteral(registry.model, type), uuid: checkUuid(verb, uuid) }
}

function found<Row>([row]: readonly Row[], type: ModelType, uuid: string): Row {
  if (row !== undefined) return row
  throw new PawlError('PAWL_NOT_FOUND', `There is no ${type.name} with the UUID ${uuid}.`, { details: { type: type.name, uuid } })
}

// ---- filters of a list

interface Filters {
  /** What the body contains, as JSON. Null: anything. */
  readonly body: string | null
  readonly references: readonly { readonly reference: Reference; readonly key: Key }[]
}

function filtersOf(model: Model, type: ModelType, where: Readonly<Record<string, unknown>>): Filters {
  const references: Filters['references'][number][] = []
  const scalars: [path: string, value: KeyValue][] = []
  for (const [path, given] of Object.entries(where)) {
    const reference = type.references.find((each) => each.path === path)
    const around = type.references.find((each) => path.startsWith(`${each.path}.`))
    if (around !== undefined)
      throw refused('documents.list', `where.${path} is inside of a reference. Name '${around.path}', with its whole key`)
    if (reference === undefined) scalars.push([path, scalarOf(type, path, given)])
    else references.push({ reference, key: referenceKey(model.get(reference.type)!, path, given) })
  }
  return { body: scalars.length === 0 ? null : JSON.stringify(scalars.reduce(contain, emptyObject())), references }
}

/** A part of the key is stored in its canonical form, any other scalar as it was given. */
function scalarOf({ identities: [own] }: ModelType, path: string, given: unknown): KeyValue {
  const value = checkValue('list', `where.${path}`, given)
  return own.scalars.some((scalar) => scalar.path.join('.') === path) ? value : (given as KeyValue)
}

/** The whole key, or its only field's value. */
function referenceKey(type: ModelType, path: string, given: unknown): Key {
  const [field, ...others] = type.key
  if (typeof given === 'object' || others.length > 0) return checkKey('list', `where.${path}`, type, given)
  return { [field!]: checkValue('list', `where.${path}`, given) }
}

/** 'a.list[].b' = 1 becomes { a: { list: [{ b: 1 }] } }, beside what is there. */
function contain(body: Record<string, unknown>, [path, value]: readonly [string, KeyValue]): Record<string, unknown> {
  let at = body
  const names = path.split('.')
  for (const [index, part] of names.entries()) {
    const isMany = part.endsWith('[]')
    const name = isMany ? part.slice(0, -2) : part
    const isLast = index === names.length - 1
    const inner = isLast ? value : emptyObject()
    if (at[name] === undefined) at[name] = isMany ? [inner] : inner
    else if (isLast || typeof at[name] !== 'object')
      throw refused('documents.list', `where.${path} is named twice, or as a scalar and as an object`)
    at = (isMany ? (at[name] as unknown[])[0] : at[name]) as Record<string, unknown>
  }
  return body
}

/** Without a prototype: a path such as '__proto__.a' would write to that of every object. */
function emptyObject(): Record<string, unknown> {
  return Object.create(null) as Record<string, unknown>
}

function referring(model: Model, references: Filters['references']): Values {
  const nodes = new Nodes(model)
  const targets = references.map(({ reference, key }) => nodes.add(model.get(reference.type)!, key) + 1)
  const patterns = references.map(({ reference }) => pathPattern(reference))
  return { ...nodes.values, targets: numbersLiteral(targets), patterns: textsLiteral(patterns) }
}
