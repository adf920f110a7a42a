// Attributes of a scope, each of which is set once: by the commit of the first submission that names it, so that what is not valid binds nothing.

import { PawlError } from '../errors.ts'
import type { DefinedSet } from './sets.ts'

export type Attributes = Readonly<Record<string, string>>

/** As JSON; null where none is given. */
export function attributesText(set: DefinedSet, attributes: Attributes | undefined): string | null {
  for (const name of Object.keys(attributes ?? {})) {
    if (!set.attributes.includes(name)) throw new PawlError('PAWL_CONFIG', `A scope of '${set.name}' has no attribute '${name}'.`)
  }
  const text = JSON.stringify(attributes ?? {})
  return text === '{}' ? null : text
}

/** Both as JSON. One that is not stored yet may have any value. */
export function assertAttributes(given: string | null, stored: string | null): void {
  if (given === null) return
  const bound = JSON.parse(stored ?? '{}') as Attributes
  const isOther = ([name, value]: [string, string]) => Object.hasOwn(bound, name) && bound[name] !== value
  if (!Object.entries(JSON.parse(given) as Attributes).some(isOther)) return
  throw new PawlError(
    'PAWL_SCOPE_ATTRIBUTES',
    `The attributes of this scope are ${stored ?? '{}'} and cannot change to ${given}. Leave them out, or use another scope.`,
    { details: { given: JSON.parse(given) as unknown, stored: bound } },
  )
}
