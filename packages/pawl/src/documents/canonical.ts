// Canonical forms: of a key, whose hash finds the document, and of a body, whose hash tells whether a write changes anything.

import { hash } from 'node:crypto'
import type { Key, KeyValue } from './types.ts'

/** Of a string in a key. */
export const keyCharsMax = 500

/** In one call: a Hash object costs twice as much. */
export function sha256(...parts: readonly [string | Uint8Array] | readonly Uint8Array[]): Buffer {
  const [first] = parts
  return hash('sha256', parts.length === 1 ? first! : Buffer.concat(parts as readonly Uint8Array[]), 'buffer')
}

/** The value as keys have it: strings in NFC. Or why it cannot be a part of a key. */
export function keyValue(given: unknown): { readonly value: KeyValue } | { readonly reason: string } {
  if (typeof given === 'boolean') return { value: given }
  if (typeof given === 'number') {
    if (Number.isSafeInteger(given) || (Number.isFinite(given) && !Number.isInteger(given))) return { value: given + 0 }
    return { reason: `must be a number that JavaScript represents exactly, got ${given}` }
  }
  if (typeof given !== 'string') return { reason: `must be a string, a number or a boolean, got ${shownType(given)}` }
  if (!given.isWellFormed() || given.includes('\u0000')) return { reason: 'must be valid Unicode without NUL' }
  const value = given.normalize('NFC')
  if ([...value].length > keyCharsMax) return { reason: `must have at most ${keyCharsMax} characters` }
  return { value }
}

/** The hash of a type and its scalars. JSON separates the parts, so no value can run into the next. `known`: hashes that this call has made. */
export function ownHash(type: string, scalars: Key, known = new Map<string, Buffer>()): Buffer {
  const names = Object.keys(scalars).sort()
  const text = JSON.stringify([type, names.map((name) => [name, scalars[name]])])
  const found = known.get(text) ?? sha256(text)
  known.set(text, found)
  return found
}

/** Of an identity, with the ids of the documents that its references refer to, by path. find_documents computes the same. */
export function keyHash(own: Uint8Array, ids: readonly string[]): Buffer {
  return ids.length === 0 ? sha256(own) : sha256(own, ...ids.map(int8))
}

function int8(id: string): Uint8Array {
  const bytes = Buffer.alloc(8)
  bytes.writeBigInt64BE(BigInt(id))
  return bytes
}

/** The value hash of a flat key, as events carry it. pawl.document_value_hash returns the same. */
export function hashOfKey(type: string, key: Key): string {
  return hash('sha256', `${type}\n${keyText(key)}`, 'hex')
}

/** As PostgreSQL writes a jsonb: names by length, then by bytes. */
function keyText(key: Key): string {
  const names = Object.keys(key)
  if (names.length > 1) names.sort(byBytes)
  return `{${names.map((name) => `${JSON.stringify(name)}: ${valueText(key[name]!)}`).join(', ')}}`
}

function byBytes(a: string, b: string): number {
  return Buffer.byteLength(a) - Buffer.byteLength(b) || Buffer.compare(Buffer.from(a), Buffer.from(b))
}

function valueText(value: KeyValue): string {
  return typeof value === 'number' ? decimal(value) : JSON.stringify(value)
}

/** Without an exponent: 1e-7 is 0.0000001. */
function decimal(value: number): string {
  const text = String(value)
  if (!text.includes('e')) return text
  const [, sign = '', whole = '', fraction = '', exponent] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(text) ?? []
  const shift = Number(exponent)
  if (shift < 0) return `${sign}0.${'0'.repeat(-shift - whole.length)}${whole}${fraction}`
  return `${sign}${whole}${fraction.padEnd(shift, '0')}`
}

/** Stands for the value of a reference in a canonical body: whether it is written as an object or as a scalar. */
export const referenceMark = { object: Symbol('object'), scalar: Symbol('scalar') } as const

/** Names sorted, values of references left out: they change without a write. */
export function contentHash(body: unknown): Buffer {
  return sha256(canonical(body))
}

function canonical(value: unknown): string {
  if (typeof value === 'symbol') return `@${String(value.description)}`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  const fields = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([name, inner]) => `${JSON.stringify(name)}:${canonical(inner)}`).join(',')}}`
}

function shownType(value: unknown): string {
  if (value === null || value === undefined) return String(value)
  return Array.isArray(value) ? 'an array' : `an ${typeof value}`
}
