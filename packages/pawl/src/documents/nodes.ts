// Natural keys as nodes: each key, and every key that it is made of, once, so that one call finds all the documents.

import { numbersLiteral } from '../db/statement.ts'
import { ownHash } from './canonical.ts'
import { calledBy, type Identity, type Model, type ModelType, type Reference } from './model.ts'
import type { Key, KeyValue } from './types.ts'

export interface Node {
  readonly type: string
  readonly key: Key
  /** Of type and own scalars. */
  readonly own: Buffer
  /** The nodes of its identity's references by path, all before it. */
  readonly refs: readonly number[]
}

/** Arrays, as literals: the own hashes, the numbers of the nodes that they are made of, and where those of each node end. */
export interface NodeValues extends Readonly<Record<'own' | 'refs' | 'ends', string>> {}

/** For find_documents. */
export class Nodes {
  readonly list: Node[] = []
  readonly #model: Model
  readonly #index = new Map<string, number>()
  readonly #owns = new Map<string, Buffer>()

  constructor(model: Model) {
    this.#model = model
  }

  /** `key` has exactly the fields of the type's flat key. Returns its index. */
  add(type: ModelType, key: Key): number {
    const [identity] = type.identities
    const scalars = Object.fromEntries(identity.scalars.map(({ name }) => [name, key[name]!]))
    const refs = identity.references.map((reference) => this.#target(reference, key))
    return this.#put({ type: type.name, key, own: ownHash(type.name, scalars, this.#owns), refs })
  }

  #target(reference: Reference, key: Key): number {
    const type = this.#model.get(reference.type)!
    return this.add(type, targetKey(type, reference, key))
  }

  #put(node: Node): number {
    const name = `${node.own.toString('latin1')}${node.refs.join()}`
    const known = this.#index.get(name)
    if (known !== undefined) return known
    this.#index.set(name, this.list.length)
    return this.list.push(node) - 1
  }

  /** As parameters. */
  get values(): NodeValues {
    return this.valuesOf([...this.list.keys()])
  }

  /** Of some nodes, in their order, with all that they are made of among them. */
  valuesOf(indexes: readonly number[]): NodeValues {
    const refs: number[] = []
    const ends: number[] = []
    const position = new Map(indexes.map((index, at) => [index, at]))
    for (const index of indexes) {
      // Arrays of PostgreSQL start at 1.
      for (const ref of this.list[index]!.refs) refs.push(position.get(ref)! + 1)
      ends.push(refs.length)
    }
    const own = `{${indexes.map((index) => `"\\\\x${this.list[index]!.own.toString('hex')}"`).join(',')}}`
    return { own, refs: numbersLiteral(refs), ends: numbersLiteral(ends) }
  }

  /** Some nodes and all that they are made of, in their order. */
  reached(from: Iterable<number>): number[] {
    const found = new Set<number>()
    const visit = (index: number) => {
      if (found.has(index)) return
      found.add(index)
      this.list[index]!.refs.forEach(visit)
    }
    for (const index of from) visit(index)
    return [...found].sort((a, b) => a - b)
  }
}

/** The key of a reference's target, as the key of the referring document has it. */
function targetKey(type: ModelType, reference: Reference, key: Key): Key {
  return Object.fromEntries(type.key.map((field) => [field, key[calledBy(reference.names, field)]!]))
}

/** The key that an identity of a document has, from the document's own. */
export function identityKey(identity: Identity, key: Key): Key {
  return Object.fromEntries(Object.entries(identity.names).map(([own, called]) => [called, key[own]!]))
}

/** The flat keys of a document by type, as pawl.document.keys has them. */
export function keysOf(type: ModelType, key: Key): Record<string, Key> {
  return Object.fromEntries(type.identities.map((identity) => [identity.type, identityKey(identity, key)]))
}

/** The current key of a document: what it holds itself, and the keys of its targets, with the names that they have here. */
export function joinKey(identity: Identity, parts: Key, targets: readonly Key[]): Key {
  const key: Record<string, KeyValue> = { ...parts }
  for (const [index, { names }] of identity.references.entries())
    for (const [field, value] of Object.entries(targets[index]!)) key[calledBy(names, field)] = value
  return key
}
