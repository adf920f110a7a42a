// Recomputes what is stored from what it is made of: keys, hashes, references, bodies. A document whose refresh is still to come has stale ones.

import { isDeepStrictEqual } from 'node:util'
import { statement, textsLiteral } from '../db/statement.ts'
import { isPawlError } from '../errors.ts'
import type { Resolved } from '../kernel/options.ts'
import { keyHash, ownHash } from './canonical.ts'
import { fill, Keys, linksOf, type ReadRow } from './fill.ts'
import { type ModelType, pathPattern } from './model.ts'
import { keysOf } from './nodes.ts'
import type { verifyTable } from './options.ts'
import { checkAfter, type Reading, rowsOf, typesLiteral } from './reads.ts'
import type { Fault, Key, VerifyReport } from './types.ts'

const verifyStatement = statement(import.meta.url, 'verify-documents')

interface Row extends ReadRow {
  readonly keys: string
  /** [type, hash, parts, ids of what it is made of] of each identity that is not old. */
  readonly identities: string | null
  /** [path, type, whether it is part of the key, names] of each reference. */
  readonly refs: string | null
}

type StoredIdentity = readonly [type: string, hash: string, parts: Key, refs: readonly string[]]
type StoredReference = readonly [path: readonly string[], type: string, inKey: boolean, names: Key | null]

export async function verifyDocuments(reading: Reading, options: Resolved<typeof verifyTable>): Promise<VerifyReport> {
  const { registry } = reading
  const { type, after, limit } = options
  const { model } = registry
  const types = type === undefined ? textsLiteral([...model.keys()]) : typesLiteral(model, registry.typeOf('verify', type))
  const rows = await rowsOf<Row>(reading, verifyStatement, { types, after: checkAfter('verify', after), limit })
  const keys = new Keys(model, rows)
  const documents = rows.filter(({ id }) => id !== null)
  const faults = documents.flatMap((row) =>
    faultsOf(model.get(row.type)!, keys, row).map((fault): Fault => ({ type: row.type, uuid: row.uuid, fault })),
  )
  return { checked: documents.length, next: documents.length < limit ? null : documents.at(-1)!.id, faults }
}

function faultsOf(type: ModelType, keys: Keys, row: Row): string[] {
  const identities = parsed<StoredIdentity>(row.identities)
  const missing = type.identities.find((identity) => identities.filter(([name]) => name === identity.type).length !== 1)
  if (missing !== undefined || identities.length !== type.identities.length)
    return [`it has ${identities.length} keys instead of ${type.identities.length}`]
  return [
    ...identities.flatMap((identity) => identityFaults(type, row, identity)),
    ...referenceFaults(type, row),
    ...staleFaults(type, keys, row),
  ]
}

function identityFaults(type: ModelType, row: Row, [name, hash, parts, refs]: StoredIdentity): string[] {
  const { scalars, references } = type.identities.find((identity) => identity.type === name)!
  const links = linksOf(row)
  const ids = references.map(({ path }) => links.find(([at]) => at.join('.') === path)?.[1])
  const body: unknown = JSON.parse(row.body)
  const own = Object.fromEntries(scalars.map(({ name, path }) => [name, valueAt(body, path)]))
  return [
    ...(hash === keyHash(ownHash(name, parts), refs).toString('hex') ? [] : [`the hash of its key as ${name} is another one's`]),
    ...(isDeepStrictEqual(ids, [...refs]) ? [] : [`its key as ${name} is made of other documents than its body refers to`]),
    ...(isDeepStrictEqual(own, parts)
      ? []
      : [`its key as ${name} has ${JSON.stringify(parts)}, its body ${JSON.stringify(own)}`]),
  ]
}

function referenceFaults(type: ModelType, row: Row): string[] {
  const stored = parsed<StoredReference>(row.refs)
  const body: unknown = JSON.parse(row.body)
  return stored.flatMap(([path, target, inKey, names]) => {
    const at = path.join('.')
    const reference = type.references.find((each) => new RegExp(pathPattern(each)).test(at))
    if (reference === undefined) return [`it has a reference at ${at}, which its type does not`]
    const isSame = reference.type === target && reference.inKey === inKey && isDeepStrictEqual(reference.names, names)
    if (!isSame) return [`its reference at ${at} is stored as the type does not define it`]
    return (valueAt(body, path) ?? undefined) === undefined ? [`its body has nothing at ${at}, where it has a reference`] : []
  })
}

/** What the document, or one that it refers to, is not stored as defined. */
function staleFaults(type: ModelType, keys: Keys, row: Row): string[] {
  try {
    return differences(type, keys, row)
  } catch (error) {
    if (isPawlError(error, 'PAWL_MODEL_CHANGED')) return [String(error.details.problem)]
    throw error
  }
}

function differences(type: ModelType, keys: Keys, row: Row): string[] {
  const references = linksOf(row).map(([path, id, target]) => [path, keys.of(id, target)] as const)
  const body: unknown = JSON.parse(row.body)
  const current = keysOf(type, keys.of(row.id!, row.type))
  const isFilled = isDeepStrictEqual(body, fill(JSON.parse(row.body), references))
  return [
    ...(isFilled ? [] : ['its stored body has an old key of what it refers to']),
    ...(isDeepStrictEqual(JSON.parse(row.keys), current)
      ? []
      : [`its stored keys are ${row.keys}, not ${JSON.stringify(current)}`]),
  ]
}

function parsed<Item>(text: string | null): readonly Item[] {
  return text === null ? [] : (JSON.parse(text) as readonly Item[])
}

function valueAt(body: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((value, name) => (value as Record<string, unknown> | null | undefined)?.[name], body)
}
