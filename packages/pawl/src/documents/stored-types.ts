// Definitions as the database keeps them: stored with the first write of a process for a tenant, and compared with what documents were written with.

import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { read } from '../kernel/retry.ts'
import { sha256 } from './canonical.ts'
import { hasWays, type Model, type ModelType } from './model.ts'
import type { Registry } from './registry.ts'

const keepStatement = statement(import.meta.url, 'keep-types')

/** What cannot change while there are documents. */
function shapeOf({ options, identities }: ModelType) {
  return {
    identity: [...options.identity].sort(),
    references: options.references ?? {},
    extends: options.extends ?? null,
    supers: identities.slice(1).map(({ type, names, scalars, references }) => ({
      type,
      names,
      scalars: scalars.map(({ path }) => path.join('.')),
      references: references.map(({ path }) => path),
    })),
  }
}

export function shapeHash(type: ModelType): string {
  return sha256(JSON.stringify(shapeOf(type), sorted)).toString('hex')
}

/** Of its own connection, also for a write in a caller's transaction: it holds no lock of a type until that ends. */
export async function keepTypes(registry: Registry, tenant: string): Promise<void> {
  if (registry.kept.has(tenant)) return
  const types = [...registry.model.values()].map((type) => ({
    name: type.name,
    shape: shapeHash(type),
    definition: definitionOf(registry.model, type),
  }))
  for (;;) {
    const [changed] = await read<{ name: string; stored: string | null }>(registry.pool, keepStatement, {
      tenant,
      types: JSON.stringify(types),
    })
    if (changed === undefined) break
    if (changed.stored !== null)
      throw modelChanged(registry.model.get(changed.name)!, JSON.parse(changed.stored) as Record<string, unknown>)
  }
  registry.kept.add(tenant)
}

/** After a write that met another shape: throws while there are documents of it. */
export async function keepTypesAgain(registry: Registry, tenant: string): Promise<void> {
  registry.kept.delete(tenant)
  await keepTypes(registry, tenant)
}

function definitionOf(model: Model, type: ModelType) {
  const { unify = [], abstract, keyChange, oldKeys } = type.options
  return { ...shapeOf(type), unify, abstract, keyChange, oldKeysMs: oldKeys, hasWays: hasWays(model, type) }
}

export function modelChanged(type: ModelType, stored: Readonly<Record<string, unknown>>): PawlError {
  const shape: Readonly<Record<string, unknown>> = shapeOf(type)
  const changed = Object.keys(shape).filter(
    (name) => JSON.stringify(shape[name], sorted) !== JSON.stringify(stored[name], sorted),
  )
  // What superclasses are called follows from the others.
  const named = changed.filter((name) => name !== 'supers' || changed.length === 1)
  const differences = named.map(
    (name) => `${name} ${shownJson(stored[name])}, which is ${shownJson(shape[name])} in this process`,
  )
  const message = `${type.name} has documents that were written with ${differences.join(', and ')}. Restore the definition, or delete them first, by \`pawl documents delete\` or a process that defines the stored one.`
  return new PawlError('PAWL_MODEL_CHANGED', message, { details: { type: type.name, changed, stored } })
}

function shownJson(value: unknown): string {
  return JSON.stringify(value ?? null, sorted).slice(0, 200)
}

/** The order of names is not a difference. */
function sorted(_name: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
}
