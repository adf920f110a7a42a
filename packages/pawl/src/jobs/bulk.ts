// Many payloads as chunks: JSON arrays that are made as they are sent.

import { atIndex } from '../kernel/payload.ts'

/** A generator is read once, as its chunks are sent; an array can be read again when the transaction is. */
export type Payloads<Input> = Iterable<Input> | AsyncIterable<Input>

export const chunkRows = 1000
/** PostgreSQL takes 256 MB in one value; this much is many times what a statement costs by itself. */
const chunkChars = 4 * 1_048_576

/** JSON arrays of at most 1,000 payloads and 4 M characters, unless one payload alone is longer. `textOf` checks each. */
export async function* chunksOf(
  payloads: Payloads<unknown>,
  textOf: (payload: unknown) => string | Promise<string>,
): AsyncGenerator<string, void> {
  // Not `for await`: of an array it would await every payload, and take a promise among them for what it gives.
  const source = Symbol.asyncIterator in payloads ? payloads[Symbol.asyncIterator]() : payloads[Symbol.iterator]()
  let texts: string[] = []
  let chars = 0
  let isRead = false
  try {
    for (let index = 0; ; index++) {
      const taken = source.next()
      const step = taken instanceof Promise ? await taken : (taken as IteratorResult<unknown>)
      if (step.done === true) {
        isRead = true
        break
      }
      const checked = textAt(index, step.value, textOf)
      const text = typeof checked === 'string' ? checked : await checked
      if (texts.length === chunkRows || (texts.length > 0 && chars + text.length > chunkChars)) {
        yield toChunk(texts)
        texts = []
        chars = 0
      }
      texts.push(text)
      chars += text.length
    }
    if (texts.length > 0) yield toChunk(texts)
  } finally {
    if (!isRead) await source.return?.()
  }
}

function textAt(
  index: number,
  payload: unknown,
  textOf: (payload: unknown) => string | Promise<string>,
): string | Promise<string> {
  try {
    const text = textOf(payload)
    if (typeof text === 'string') return text
    return text.catch((error: unknown) => {
      throw atIndex(error, index)
    })
  } catch (error) {
    throw atIndex(error, index)
  }
}

export function toChunk(texts: readonly string[]): string {
  return `[${texts.join(',')}]`
}

export interface EnqueuedRow {
  readonly ids: string | null
}

export function idsOf(rows: readonly EnqueuedRow[]): string[] {
  return rows.flatMap(({ ids }) => ids?.split(',') ?? [])
}
