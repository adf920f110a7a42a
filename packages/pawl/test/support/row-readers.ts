// The readers of CSV, NDJSON and JSON without a database: what they make of a text, in whatever pieces it comes.

import { isInvalidFile } from '../../src/records/formats/bytes.ts'
import { readCells } from '../../src/records/formats/csv.ts'
import { readJson, readNdjson } from '../../src/records/formats/json.ts'

export type TextFormat = 'csv' | 'ndjson' | 'json'

export interface Outcome {
  /** Of a CSV the cells, of JSON the fields a, b and c. Only of a file that is whole. */
  readonly rows?: readonly unknown[]
  readonly error?: { readonly code: string; readonly line: number }
}

export interface OutcomeOptions {
  readonly rowCharsMax?: number
  readonly delimiter?: string
}

export async function outcome(format: TextFormat, pieces: Iterable<string>, options: OutcomeOptions = {}): Promise<Outcome> {
  const { rowCharsMax = 1_000_000, delimiter } = options
  async function* texts() {
    yield* pieces
  }
  const rows: unknown[] = []
  try {
    if (format === 'csv') for await (const some of readCells(texts(), { rowCharsMax, delimiter })) rows.push(...some)
    else {
      const read = format === 'json' ? readJson : readNdjson
      for await (const some of read(texts(), { rowCharsMax }))
        for (const row of some)
          rows.push({ line: row.line, fault: row.fault?.code, values: ['a', 'b', 'c'].map((name) => row.get(name)) })
    }
    return { rows }
  } catch (error) {
    if (!isInvalidFile(error)) throw error
    return { error: { code: error.code, line: error.line } }
  }
}

/** In pieces of these lengths, again and again. */
export function* inPiecesOf(text: string, lengths: readonly number[]): Generator<string> {
  for (let at = 0, index = 0; at < text.length; index++) {
    const length = lengths[index % lengths.length]!
    yield text.slice(at, at + length)
    at += length
  }
}
