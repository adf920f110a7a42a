// Definitions become one model, frozen at the first verb: flat keys, identities, which references bind which leaves. Targets that are not defined,
// cycles and clashes are found here, all before anything is written.

import type { PawlError } from '../errors.ts'
import { check, type Resolved, refused, resolve } from '../kernel/options.ts'
import { superOptions, typeName, typeTable } from './options.ts'
import type { DocumentTypeOptions, SuperOptions } from './types.ts'

/** A scalar of the body that is part of the key. */
export interface Scalar {
  readonly name: string
  readonly path: readonly string[]
}

/** One step of a path; `isMany`: the value is an array, and the path goes on in each element. */
export interface Segment {
  readonly name: string
  readonly isMany: boolean
}

export interface Reference {
  /** As declared: 'classPeriods[].classPeriodReference'. */
  readonly path: string
  readonly segments: readonly Segment[]
  readonly type: string
  readonly inKey: boolean
  /** Fields of the target's key that have another name in the key of the referring type. Null: none. */
  readonly names: Readonly<Record<string, string>> | null
}

/** What a document answers to: its own key, or that of a superclass. */
export interface Identity {
  readonly type: string
  /** By name, as this identity calls them. */
  readonly scalars: readonly Scalar[]
  /** By path. */
  readonly references: readonly Reference[]
  /** Fields of the document's own key, and what this identity calls them. */
  readonly names: Readonly<Record<string, string>>
}

/** One end of a rule: a field of the key of what a reference refers to. */
export interface Leaf {
  readonly reference: Reference
  readonly field: string
}

/** Two leaves that must be held by the same document. */
export type Rule = readonly [Leaf, Leaf]

/** A reference of some type whose rule passes through a leaf of this one. */
export interface Bound {
  readonly type: string
  readonly reference: Reference
}

export interface ModelType {
  readonly name: string
  readonly options: TypeOptions
  /** The fields of its flat key, sorted. */
  readonly key: readonly string[]
  /** Its own first, then its superclasses upwards. */
  readonly identities: readonly [Identity, ...Identity[]]
  /** By path. */
  readonly references: readonly Reference[]
  readonly rules: readonly Rule[]
  /** By field of its key that comes from a reference: what is bound to its owner. Mostly empty. */
  readonly bound: ReadonlyMap<string, readonly Bound[]>
}

/** What `as` calls a field. By its own names only: every object has a 'constructor'. */
export function calledBy(names: Readonly<Record<string, string>> | null, field: string): string {
  return names !== null && Object.hasOwn(names, field) ? names[field]! : field
}

export type Model = ReadonlyMap<string, ModelType>

/** As defined, before targets are known. */
export interface DefinedType {
  readonly name: string
  readonly options: TypeOptions
}
type TypeOptions = Omit<Resolved<typeof typeTable>, 'extends'> & { readonly extends?: Resolved<typeof superOptions> }

const identityDepthMax = 16
const referencesMax = 1000

export function defineType(name: string, given: DocumentTypeOptions<never>): DefinedType {
  const call = `documents.define('${check('documents.define', 'type', typeName, name)}')`
  const { extends: parent, ...options } = resolve(call, typeTable, given)
  if (options.identity.length === 0) throw refused(call, 'identity must name at least one path')
  const extended = parent === undefined ? {} : { extends: resolve(`${call}: extends`, superOptions, parent as SuperOptions) }
  return { name, options: { ...options, ...extended } }
}

/** Throws PAWL_CONFIG with the type, the path and the fix. */
export function compileModel(defined: ReadonlyMap<string, DefinedType>): Model {
  const compiler = new Compiler(defined)
  for (const name of defined.keys()) compiler.typeOf(name, [])
  return compiler.bind()
}

class Compiler {
  readonly #defined: ReadonlyMap<string, DefinedType>
  readonly #types = new Map<string, ModelType & { readonly bound: Map<string, Bound[]> }>()

  constructor(defined: ReadonlyMap<string, DefinedType>) {
    this.#defined = defined
  }

  /** `from`: the types whose keys are being made of this one. */
  typeOf(name: string, from: readonly string[]): ModelType {
    const done = this.#types.get(name)
    if (done !== undefined) return done
    const chain = [...from, name]
    if (from.includes(name))
      throw wrong(
        name,
        `its identity contains itself: ${chain.slice(from.indexOf(name)).join(' -> ')}. Leave one out of identity`,
      )
    const { options } = this.#defined.get(name)!
    const references = this.#references(name, options)
    const own = this.#identity(name, options, references, chain)
    const key = Object.keys(own.names).sort()
    const identities = [own, ...this.#supers(name, own, chain)] as const
    const type = { name, options, key, identities, references, rules: [] as Rule[], bound: new Map<string, Bound[]>() }
    this.#types.set(name, type)
    return type
  }

  #references(name: string, { references = {}, identity }: TypeOptions): Reference[] {
    const paths = Object.keys(references).sort()
    if (paths.length > referencesMax) throw wrong(name, `it has ${paths.length} references, at most ${referencesMax}`)
    return paths.map((path) => {
      const { type, as } = references[path]!
      const inKey = identity.includes(path)
      const segments = segmentsOf(name, path)
      const inside = paths.find((other) => other !== path && (path.startsWith(`${other}.`) || path.startsWith(`${other}[]`)))
      if (inside !== undefined) throw wrong(name, `the reference '${path}' is inside of the reference '${inside}'`)
      if (!this.#defined.has(type))
        throw wrong(name, `the reference '${path}' needs the type '${type}', which is not defined. Call define for it`)
      if (inKey && segments.some(({ isMany }) => isMany))
        throw wrong(name, `identity has '${path}', which is in an array: a key has one value per field`)
      if (as !== undefined && !inKey) throw wrong(name, `the reference '${path}' has 'as', but is not in identity`)
      return { path, segments, type, inKey, names: as ?? null }
    })
  }

  #identity(name: string, { identity }: TypeOptions, references: readonly Reference[], chain: readonly string[]): Identity {
    const inKey = references.filter((reference) => reference.inKey)
    const scalars: Scalar[] = []
    const names = new Map<string, string>()
    for (const path of identity) {
      if (inKey.some((reference) => reference.path === path)) continue
      const segments = segmentsOf(name, path)
      if (segments.some(({ isMany }) => isMany)) throw wrong(name, `identity has '${path}', which is in an array`)
      const inside = references.find((reference) => path.startsWith(`${reference.path}.`))
      if (inside !== undefined)
        throw wrong(name, `identity has '${path}', which is inside of the reference '${inside.path}'. Name the reference`)
      const scalar = { name: segments.at(-1)!.name, path: segments.map((segment) => segment.name) }
      if (names.has(scalar.name)) throw clash(name, scalar.name, names.get(scalar.name)!, path)
      names.set(scalar.name, path)
      scalars.push(scalar)
    }
    for (const reference of inKey) {
      for (const field of this.#fieldsOf(name, reference, chain)) {
        const other = names.get(field)
        if (scalars.some((scalar) => scalar.name === field)) throw clash(name, field, other!, reference.path)
        names.set(field, reference.path)
      }
    }
    return { type: name, scalars: scalars.sort(byName), references: inKey, names: same(names.keys()) }
  }

  /** What the fields of the target's key are called in the key of the referring type. */
  #fieldsOf(name: string, reference: Reference, chain: readonly string[]): string[] {
    const { key } = this.typeOf(reference.type, chain)
    const unknown = Object.keys(reference.names ?? {}).find((field) => !key.includes(field))
    if (unknown !== undefined)
      throw wrong(
        name,
        `'as' of the reference '${reference.path}' names '${unknown}', but the key of ${reference.type} has ${key.join(', ')}`,
      )
    const fields = key.map((field) => calledBy(reference.names, field))
    if (new Set(fields).size < fields.length)
      throw wrong(name, `'as' of the reference '${reference.path}' gives two fields one name`)
    return fields
  }

  #supers(name: string, own: Identity, chain: readonly string[]): Identity[] {
    const parent = this.#defined.get(name)!.options.extends
    if (parent === undefined) return []
    if (!this.#defined.has(parent.type))
      throw wrong(name, `it extends '${parent.type}', which is not defined. Call define for it`)
    const as = parent.as ?? {}
    const unknown = Object.keys(as).find((field) => !Object.hasOwn(own.names, field))
    if (unknown !== undefined) throw wrong(name, `'as' of extends names '${unknown}', which is not in its key`)
    const { identities } = this.typeOf(parent.type, chain)
    return identities.map((identity) => this.#superIdentity(name, own, as, identities[0], identity))
  }

  /** The superclass's key must be a part of the subclass's: the same references by path, and scalars for scalars. */
  #superIdentity(
    name: string,
    own: Identity,
    as: Readonly<Record<string, string>>,
    parent: Identity,
    identity: Identity,
  ): Identity {
    /** By field of the parent: the field of the subclass. */
    const ownField = new Map(Object.keys(own.names).map((field) => [calledBy(as, field), field]))
    const names: Record<string, string> = {}
    for (const [field, called] of Object.entries(identity.names)) {
      const found = ownField.get(field)
      if (found === undefined) throw wrong(name, `it extends ${parent.type}, but its key has no '${field}'. Name it with 'as'`)
      names[found] = called
    }
    const scalars = identity.scalars.map((scalar) => {
      const field = Object.keys(names).find((each) => names[each] === scalar.name)
      const found = own.scalars.find((each) => each.name === field)
      if (found === undefined) throw wrong(name, `'${field}' must be a scalar of its own, as it is in ${identity.type}`)
      return { name: scalar.name, path: found.path }
    })
    const references = identity.references.map((reference) => {
      const found = own.references.find((each) => each.path === reference.path && each.type === reference.type)
      if (found === undefined)
        throw wrong(name, `its identity needs the reference '${reference.path}' to ${reference.type}, as ${identity.type} has it`)
      return found
    })
    return { type: identity.type, scalars, references, names }
  }

  /** Gives each type its rules, and notes in every type on the way which of its fields a rule depends on. */
  bind(): Model {
    const chains = new Map<string, readonly string[]>()
    for (const name of this.#types.keys()) this.#longestChain(name, [], chains)
    for (const type of this.#types.values()) {
      const rules = type.rules as Rule[]
      rules.push(...this.#declaredRules(type), ...this.#keyRules(type))
      for (const rule of rules) {
        this.#assertOneOwner(type.name, rule)
        for (const leaf of rule) this.#bindLeaf({ type: type.name, reference: leaf.reference }, leaf.reference.type, leaf.field)
      }
    }
    return this.#types
  }

  /** The types that its key is made of, by the deepest way. A reference may hold any subclass of its target: no key may contain itself through those. */
  #longestChain(name: string, from: readonly string[], chains: Map<string, readonly string[]>): readonly string[] {
    if (from.includes(name))
      throw wrong(
        name,
        `its identity contains itself: ${[...from.slice(from.indexOf(name)), name].join(' -> ')}. Leave one out of identity`,
      )
    const known = chains.get(name)
    if (known !== undefined) return known
    let longest: readonly string[] = []
    for (const { type } of this.#types.get(name)!.identities[0].references)
      for (const each of this.#types.keys()) {
        if (!this.#answersTo(each).includes(type)) continue
        const below = this.#longestChain(each, [...from, name], chains)
        if (below.length > longest.length) longest = below
      }
    const chain = [name, ...longest]
    if (chain.length > identityDepthMax)
      throw wrong(name, `its identity is more than ${identityDepthMax} types deep: ${chain.join(' -> ')}`)
    chains.set(name, chain)
    return chain
  }

  #declaredRules({ name, references, options }: ModelType): Rule[] {
    return (options.unify ?? []).map(([a, b]): Rule => [this.#leafOf(name, references, a), this.#leafOf(name, references, b)])
  }

  #leafOf(name: string, references: readonly Reference[], path: string): Leaf {
    const reference = references.find((each) => path.startsWith(`${each.path}.`))
    if (reference === undefined) throw wrong(name, `unify has '${path}', which is not a field of one of its references`)
    const field = path.slice(reference.path.length + 1)
    const { key } = this.#types.get(reference.type)!
    if (!key.includes(field)) throw wrong(name, `unify has '${path}', but the key of ${reference.type} has ${key.join(', ')}`)
    return { reference, field }
  }

  /** One name through two references of the identity is one field of the key. */
  #keyRules({ identities }: ModelType): Rule[] {
    const first = new Map<string, Leaf>()
    const rules: Rule[] = []
    for (const reference of identities[0].references) {
      for (const field of this.#types.get(reference.type)!.key) {
        const name = calledBy(reference.names, field)
        const other = first.get(name)
        if (other === undefined) first.set(name, { reference, field })
        else rules.push([other, { reference, field }])
      }
    }
    return rules
  }

  /** Held by one document, a value stays equal in both places when that document is renamed. */
  #assertOneOwner(name: string, [a, b]: Rule): void {
    const [ownerA, ownerB] = [this.#ownerOf(a.reference.type, a.field), this.#ownerOf(b.reference.type, b.field)]
    const isRelated = ownerA === ownerB || this.#answersTo(ownerA).includes(ownerB) || this.#answersTo(ownerB).includes(ownerA)
    if (isRelated) return
    const paths = `'${a.reference.path}.${a.field}' and '${b.reference.path}.${b.field}'`
    throw wrong(name, `${paths} are one value, but ${ownerA} holds the first and ${ownerB} the second. Rename one with 'as'`)
  }

  #answersTo(type: string): string[] {
    return this.#types.get(type)!.identities.map((identity) => identity.type)
  }

  #ownerOf(type: string, field: string): string {
    const via = this.#via(type, field)
    return via[0] === undefined ? type : this.#ownerOf(via[0].reference.type, via[0].field)
  }

  /** The references of the identity whose targets have this field in their keys; none: it is a scalar of the type itself. */
  #via(type: string, field: string): Leaf[] {
    return this.#types.get(type)!.identities[0].references.flatMap((reference) =>
      this.#types
        .get(reference.type)!
        .key.filter((each) => calledBy(reference.names, each) === field)
        .map((each) => ({ reference, field: each })),
    )
  }

  #bindLeaf(bound: Bound, type: string, field: string): void {
    const via = this.#via(type, field)
    if (via.length === 0) return
    for (const each of this.#types.values()) {
      const identity = each.identities.find((identity) => identity.type === type)
      const own = Object.entries(identity?.names ?? {}).find(([, called]) => called === field)?.[0]
      if (own !== undefined) each.bound.set(own, [...(each.bound.get(own) ?? []), bound])
    }
    for (const leaf of via) this.#bindLeaf(bound, leaf.reference.type, leaf.field)
  }
}

/** Whether a rename may reach a document of this type by several of its references, one of them later than another. */
export function hasWays(model: Model, { references }: ModelType): boolean {
  const ways = references.map(({ type, segments }) => ({
    first: namesOf(model, type),
    later: partsOf(model, type),
    isMany: segments.some(({ isMany }) => isMany),
  }))
  const doMeet = (a: (typeof ways)[number], b: (typeof ways)[number]) =>
    a === b ? a.isMany && a.later.size > 0 : [...b.first, ...b.later].some((type) => a.later.has(type))
  return ways.some((a) => ways.some((b) => doMeet(a, b)))
}

/** The types of the documents whose keys are a part of a key of this one. */
function partsOf(model: Model, name: string): Set<string> {
  const parts = new Set<string>()
  const visit = (each: string) => {
    for (const { type } of model.get(each)!.identities[0].references) {
      if (parts.has(type)) continue
      parts.add(type)
      visit(type)
    }
  }
  visit(name)
  return new Set([...parts].flatMap((part) => namesOf(model, part)))
}

/** The types of the documents that a reference to this one may lead to. */
function namesOf(model: Model, name: string): string[] {
  return [...model.values()].filter(({ identities }) => identities.some(({ type }) => type === name)).map((type) => type.name)
}

/** 'a.b' and 'list[].ref'. */
function segmentsOf(name: string, path: string): Segment[] {
  const segments = path.split('.').map((part) => {
    const isMany = part.endsWith('[]')
    return { name: isMany ? part.slice(0, -2) : part, isMany }
  })
  if (segments.some((segment) => segment.name === '' || /[[\]]/.test(segment.name) || segment.name === '__proto__'))
    throw wrong(name, `'${path}' must be a path such as 'a.b' or 'list[].reference'`)
  return segments
}

/** A regular expression for its concrete paths, joined by dots: names of segments have none. */
export function pathPattern({ segments }: Reference): string {
  const parts = segments.map(({ name, isMany }) => `${name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')}${isMany ? '\\.\\d+' : ''}`)
  return `^${parts.join('\\.')}$`
}

function clash(type: string, field: string, a: string, b: string): PawlError {
  return wrong(type, `its key has '${field}' twice, by '${a}' and by '${b}'. Rename one with 'as', or leave one out of identity`)
}

function wrong(type: string, problem: string): PawlError {
  return refused(`documents.define('${type}')`, problem, { type })
}

function same(names: Iterable<string>): Record<string, string> {
  return Object.fromEntries([...names].map((name) => [name, name]))
}

function byName(a: Scalar, b: Scalar): number {
  return a.name < b.name ? -1 : 1
}
