// What a reader sees: the stored body, with the current key of its target at every reference. Bodies are stored whole, but their references may be
// older than a rename; the keys come with the body, of one snapshot.

import { hash } from 'node:crypto'
import { PawlError } from '../errors.ts'
import { hashOfKey } from './canonical.ts'
import type { Model } from './model.ts'
import { joinKey } from './nodes.ts'
import type { Document, Key } from './types.ts'

/** A row of pawl.read_documents. The one without an id has the keys. */
export interface ReadRow {
  readonly id: string | null
  readonly uuid: string
  readonly type: string
  readonly revision: number
  readonly created_at: string
  readonly changed_at: string
  readonly body: string
  readonly links: string | null
}

/** A reference: its path in the body, the document that it refers to, and the type that it is declared with. */
export type Link = readonly [path: readonly string[], id: string, type: string]

/** `refs`: ids, with a space between them. */
type KeyRow = readonly [id: string, type: string, parts: Key, refs: string]

export function toDocuments(model: Model, rows: readonly ReadRow[]): Document[] {
  const keys = new Keys(model, rows)
  return rows.flatMap((row) => (row.id === null ? [] : [toDocument(row, keys)]))
}

function toDocument(row: ReadRow, keys: Keys): Document {
  const { uuid, type } = row
  const links = linksOf(row)
  const key = keys.of(row.id!, type)
  const references = links.map(([path, id, target]) => [path, keys.of(id, target)] as const)
  return {
    uuid,
    type,
    etag: etagOf(row, references),
    key,
    keyHash: hashOfKey(type, key),
    body: fill(JSON.parse(row.body), references),
    createdAt: new Date(row.created_at),
    changedAt: new Date(row.changed_at),
    byOldKey: false,
  }
}

export function linksOf({ links }: ReadRow): readonly Link[] {
  return links === null ? [] : (JSON.parse(links) as readonly Link[])
}

/** The current keys of what one answer reaches. */
export class Keys {
  readonly #model: Model
  readonly #rows = new Map<string, KeyRow>()
  readonly #keys = new Map<string, Key>()

  constructor(model: Model, rows: readonly ReadRow[]) {
    this.#model = model
    const last = rows.at(-1)
    if (last?.id !== null || last.links === null) return
    for (const row of JSON.parse(last.links) as readonly KeyRow[]) this.#rows.set(`${row[0]} ${row[1]}`, row)
  }

  /** The key that a document has as a type: its own, or a superclass. Throws where that is not stored as this process defines it. */
  of(id: string, type: string): Key {
    const name = `${id} ${type}`
    const known = this.#keys.get(name)
    if (known !== undefined) return known
    const [, , parts, refs] = this.#rows.get(name) ?? unreadable(type, `document ${id} has no key as ${type}`)
    const { identities } = this.#model.get(type) ?? unreadable(type, `this process does not define ${type}`)
    const [identity] = identities
    const { scalars } = identity
    if (Object.keys(parts).length !== scalars.length || !scalars.every((scalar) => Object.hasOwn(parts, scalar.name)))
      unreadable(
        type,
        `the key of document ${id} has ${listed(Object.keys(parts))} of its own, ${listed(scalars.map((scalar) => scalar.name))} as ${type} is defined`,
      )
    const ids = refs === '' ? [] : refs.split(' ')
    if (ids.length !== identity.references.length)
      unreadable(
        type,
        `the key of document ${id} has ${ids.length} references, ${identity.references.length} as ${type} is defined`,
      )
    const targets = identity.references.map((reference, index) => this.of(ids[index]!, reference.type))
    const key = targets.length === 0 ? parts : joinKey(identity, parts, targets)
    this.#keys.set(name, key)
    return key
  }
}

function listed(names: readonly string[]): string {
  return names.length === 0 ? 'no field' : [...names].sort().join(', ')
}

export function unreadable(type: string, problem: string): never {
  const message = `${type} cannot be read: ${problem}. Define it as its documents were written, and run verify.`
  throw new PawlError('PAWL_MODEL_CHANGED', message, { details: { type, problem } })
}

/** Changes the body. A reference that is written as a scalar stays one. Where the body has no such place, nothing is filled. */
export function fill(body: unknown, references: readonly (readonly [path: readonly string[], key: Key])[]): unknown {
  for (const [path, key] of references) {
    let at = body as Record<string, unknown>
    for (const name of path.slice(0, -1)) at = (at[name] ?? {}) as Record<string, unknown>
    const name = path.at(-1)!
    if (at[name] !== undefined) at[name] = typeof at[name] === 'object' ? { ...key } : Object.values(key)[0]
  }
  return body
}

/**
 * The revision, and a digest of the keys that fill the references: a rename of a target changes it without a write. And of the UUID: by its key a client
 * may meet another document with the same revision.
 */
export function etagOf(
  { uuid, revision }: Pick<Document, 'uuid'> & { readonly revision: number },
  references: readonly (readonly [path: readonly string[], key: Key])[],
): string {
  const filled = references.map(([path, key]) => JSON.stringify([path, Object.entries(key).sort(byName)])).sort()
  return `${revision}.${hash('sha256', [uuid, ...filled].join(), 'base64url').slice(0, 16)}`
}

function byName([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : 1
}
