// The key that a call names a record with, as it is stored: " S " is S in a text column, and "5.0" is 5 in a number column.

import { statement } from '../db/statement.ts'
import { shown } from '../errors.ts'
import { refused } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import { isFault } from './columns.ts'
import type { ReadPlace, RecordsCore } from './core.ts'
import { type DefinedType, keyPart, keyText } from './sets.ts'

const getStatement = statement(import.meta.url, 'record-get')

export async function storedKey(core: RecordsCore, call: string, place: ReadPlace, type: string, key: string): Promise<string> {
  if (typeof type !== 'string') throw refused(call, `type must be a string, got ${shown(type)}`)
  if (typeof key !== 'string') throw refused(call, `key must be a string, got ${shown(key)}. Give '5' and not 5`)
  const canonical = canonicalKey(place.set.types.get(type), key)
  if (canonical === key) return key
  // A record that an older version of the set wrote may have the key as it is given.
  const { tenant, set, scope } = place
  const [held] = await read(core.pool, getStatement, { tenant, record_set: set.name, scope, type, key, number: null })
  return held === undefined ? canonical : key
}

function canonicalKey(type: DefinedType | undefined, key: string): string {
  if (type === undefined) return key
  const given = type.key.length === 1 ? [key] : partsOf(key)
  if (given.length !== type.key.length) return key
  const parts: string[] = []
  for (const [index, part] of given.entries()) {
    const text = type.columns[type.keyIndexes[index]!]!.form(part)
    if (text === undefined || isFault(text)) return key
    parts.push(keyPart(text))
  }
  return keyText(parts)
}

function partsOf(key: string): readonly unknown[] {
  try {
    const parts: unknown = JSON.parse(key)
    return Array.isArray(parts) ? parts : []
  } catch {
    return []
  }
}
