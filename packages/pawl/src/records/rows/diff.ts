// Differences of two versions: as the fields that changed, and as a table. A JSON number in data is exact as a double, so JSON.parse loses
// nothing here.

import { isDeepStrictEqual } from 'node:util'
import type { FieldChange, RecordData } from '../types.ts'
import { endOfString } from './json-text.ts'

/**
 * The top-level fields that differ, in order, of two canonical strings: equal values have equal strings and fields are in order, so the two are
 * merged and not parsed. An erased or deleted version has none.
 */
export function changedFields(before: string | null, after: string | null): string[] {
  const [old, next] = [new FieldTexts(before ?? '{}'), new FieldTexts(after ?? '{}')]
  const names: string[] = []
  while (old.name !== undefined || next.name !== undefined) {
    const isOld = next.name === undefined || (old.name !== undefined && old.name <= next.name)
    const isNext = old.name === undefined || (next.name !== undefined && next.name <= old.name)
    if (!isOld || !isNext || old.value !== next.value) names.push((isOld ? old.name : next.name)!)
    if (isOld) old.move()
    if (isNext) next.move()
  }
  return names
}

/** The fields of a canonical text, one after another. */
class FieldTexts {
  readonly #text: string
  #at = 1
  /** undefined: there is no other. */
  name: string | undefined
  value = ''

  constructor(text: string) {
    this.#text = text
    this.move()
  }

  move(): void {
    const text = this.#text
    if (text.charCodeAt(this.#at) !== 34) {
      this.name = undefined
      return
    }
    const nameEnd = endOfString(text, this.#at)
    const name = text.slice(this.#at + 1, nameEnd - 1)
    this.name = name.includes('\\') ? (JSON.parse(`"${name}"`) as string) : name
    const end = endOfValue(text, nameEnd + 1)
    this.value = text.slice(nameEnd + 1, end)
    // After the comma, or at the end.
    this.#at = end + 1
  }
}

/** Of the value that begins here, within an object. */
function endOfValue(text: string, start: number): number {
  let depth = 0
  for (let at = start; ; at++) {
    const code = text.charCodeAt(at)
    if (code === 34) at = endOfString(text, at) - 1
    else if (code === 123 || code === 91) depth++
    else if ((code === 125 || code === 93) && depth-- === 0) return at
    if (depth === 0 && text.charCodeAt(at + 1) === 44) return at + 1
  }
}

/** Only what the two have: a field that is absent in one is not there in its half of the line either. */
export function fieldChanges(before: RecordData | null, after: RecordData | null): FieldChange[] {
  const names = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])
  return [...names].sort().flatMap((field) => {
    const hasBefore = before !== null && Object.hasOwn(before, field)
    const hasAfter = after !== null && Object.hasOwn(after, field)
    if (hasBefore && hasAfter && isDeepStrictEqual(before[field], after[field])) return []
    return [{ field, ...(hasBefore ? { before: before[field] } : {}), ...(hasAfter ? { after: after[field] } : {}) }]
  })
}
