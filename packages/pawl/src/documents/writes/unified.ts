// Unified keys: values that must come from one document, and the re-points that would part them.

import type { PawlError } from '../../errors.ts'
import { calledBy, type Leaf, type Model, type ModelType, pathPattern } from '../model.ts'
import type { Nodes } from '../nodes.ts'
import { type Draft, type Link, refusedBody } from './draft.ts'

/** Whether its writes must hold every document of their keys: a rule of its own, or of a type that refers to it, depends on these. */
export function isBound({ rules, bound }: ModelType): boolean {
  return rules.length > 0 || bound.size > 0
}

/** By owner and not by value: two sessions may both be called Fall, and one of them may be renamed. */
export function assertOneOwner(model: Model, nodes: Nodes, { type, links }: Draft, ids: readonly (string | null)[]): void {
  for (const [a, b] of type.rules) {
    const [first, ...rest] = [...endsOf(links, a), ...endsOf(links, b)]
    if (first === undefined) continue
    const owner = ids[ownerNode(model, nodes, first.node, first.field)]
    const other = rest.find(({ node, field }) => ids[ownerNode(model, nodes, node, field)] !== owner)
    if (other !== undefined) throw twoOwners(type, first.path, other.path)
  }
}

function endsOf(links: readonly Link[], { reference, field }: Leaf) {
  return links
    .filter((link) => link.reference === reference)
    .map(({ node, path }) => ({ node, field, path: `${path.join('.')}.${field}` }))
}

function ownerNode(model: Model, nodes: Nodes, node: number, field: string): number {
  const { type, refs } = nodes.list[node]!
  const via = viaOf(model, model.get(type)!, field)
  return via === undefined ? node : ownerNode(model, nodes, refs[via.index]!, via.field)
}

/** The first reference of the identity that brings this field; undefined: the type holds it itself. */
function viaOf(model: Model, { identities }: ModelType, field: string) {
  for (const [index, reference] of identities[0].references.entries()) {
    const found = model.get(reference.type)!.key.find((each) => calledBy(reference.names, each) === field)
    if (found !== undefined) return { index, reference, field: found }
  }
  return undefined
}

/** For judge_document: how each bound leaf is reached, and the references that depend on it. */
export function boundOf(model: Model, type: ModelType): readonly object[] {
  return [...type.bound].map(([field, by]) => ({
    steps: stepsOf(model, type, field),
    by: by.map(({ type, reference }) => ({ type, path: pathPattern(reference) })),
  }))
}

function stepsOf(model: Model, type: ModelType, field: string): [number: number, type: string][] {
  const via = viaOf(model, type, field)
  if (via === undefined) return []
  const target = model.get(via.reference.type)!
  return [[via.index + 1, target.name], ...stepsOf(model, target, via.field)]
}

function twoOwners({ name }: ModelType, a: string, b: string): PawlError {
  return refusedBody(name, b, `must lead to the same document as ${a}: their values are equal, but two documents hold them`)
}
