// The readers of CSV, NDJSON and JSON: the same rows whatever the pieces are, and the same as csv-parse where that is meant.

import { CsvError, parse } from 'csv-parse/sync'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { inPiecesOf, type Outcome, outcome, type TextFormat } from '../../../test/support/row-readers.ts'
import { defineSet } from '../sets.ts'
import type { UploadOptions } from '../types.ts'
import { UploadBytes } from './bytes.ts'
import { limitOf, sourceRows } from './readers.ts'

const lengths = fc.array(fc.integer({ min: 1, max: 12 }), { minLength: 1, maxLength: 5 })

/** Everything that has a meaning in a CSV, and some that has none. No NUL: csv-parse takes one after a quote for the end of the file. */
const noise = fc
  .array(fc.constantFrom('a', 'bc', '1', '"', '""', ',', ',', '\n', '\n', '\r\n', '\r', ' ', ';', '\t', 'ü', '😀', '\u0001'), {
    maxLength: 40,
  })
  .map((pieces) => pieces.join(''))

const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`
const cell = fc
  .tuple(fc.oneof(fc.constantFrom('', 'a', '0'), fc.string({ unit: 'binary', maxLength: 8 }), noise), fc.boolean())
  .map(([text, isQuoted]) => (isQuoted || /[",;\t\r\n]/.test(text) ? quoted(text) : text))
const sheet = (delimiter: string) =>
  fc
    .tuple(
      fc.array(fc.array(cell, { minLength: 1, maxLength: 5 }), { maxLength: 8 }),
      fc.constantFrom('\n', '\r\n'),
      fc.boolean(),
    )
    .map(([rows, end, isEnded]) => rows.map((cells) => cells.join(delimiter)).join(end) + (isEnded ? end : ''))

/**
 * What csv-parse makes of the same text. Two differences are meant: a row of nothing but empty cells is no row, and a CR at the end of the file
 * ends its line.
 */
function byCsvParse(text: string, delimiter: string): string[][] | 'refused' {
  try {
    const rows: string[][] = parse(text.endsWith('\r') ? `${text}\n` : text, {
      delimiter,
      record_delimiter: ['\n', '\r\n'],
      relax_column_count: true,
    })
    return rows.filter((cells) => cells.some((each) => each !== ''))
  } catch (error) {
    if (error instanceof CsvError) return 'refused'
    throw error
  }
}

test.each([',', ';', '\t'])('[R10] a CSV with the delimiter %j is read as csv-parse does', async (delimiter) => {
  const same = async (text: string, pieces: readonly number[]) => {
    const { rows } = await outcome('csv', inPiecesOf(text, pieces), { delimiter })
    const cells = rows === undefined ? 'refused' : rows.map((row) => (row as { cells: string[] }).cells)
    expect(cells, JSON.stringify(text)).toEqual(byCsvParse(text, delimiter))
  }
  await fc.assert(fc.asyncProperty(noise, lengths, same), { numRuns: 1500 })
  await fc.assert(fc.asyncProperty(sheet(delimiter), lengths, same), { numRuns: 500 })
})

test('[R10] the lines of a CSV are counted as csv-parse counts them', async () => {
  await fc.assert(
    fc.asyncProperty(sheet(','), lengths, async (text, pieces) => {
      const { rows } = await outcome('csv', inPiecesOf(text, pieces))
      const parsed = parse(text, { record_delimiter: ['\n', '\r\n'], relax_column_count: true, info: true }) as unknown as {
        record: string[]
        info: { lines: number }
      }[]
      // csv-parse has the line that a record ends on, and counts those in quotes.
      const lines: [from: number, cells: string[]][] = []
      let from = 1
      for (const { record } of parsed) {
        if (record.some((each) => each !== '')) lines.push([from, record])
        from += 1 + record.join('').split('\n').length - 1
      }
      expect(rows).toEqual(lines.map(([line, cells]) => ({ line, cells })))
    }),
  )
})

const jsonNoise = fc
  .array(
    fc.constantFrom(
      '{"a":1}',
      '{"b":"x"}',
      '{"c":[1,{"d":"]}"}]}',
      '{"a":"\\\\\\""}',
      '[',
      ']',
      ',',
      '\n',
      '\r\n',
      ' ',
      '{',
      '1',
    ),
    {
      maxLength: 12,
    },
  )
  .map((pieces) => pieces.join(''))
const objects = fc.array(fc.record({ a: fc.string({ maxLength: 12 }), b: fc.double(), c: fc.boolean() }), { maxLength: 6 })

const texts: Readonly<Record<TextFormat, fc.Arbitrary<string>>> = {
  csv: fc.oneof(noise, sheet(',')),
  ndjson: fc.oneof(
    jsonNoise,
    objects.map((all) => all.map((each) => `${JSON.stringify(each)}\n`).join('')),
  ),
  json: fc.oneof(
    jsonNoise,
    objects.map((all) => JSON.stringify(all)),
    objects.map((all) => JSON.stringify(all, null, 2)),
  ),
}

test.each(['csv', 'ndjson', 'json'] as const)('[R10] rows and row limit of %s do not depend on chunks', async (format) => {
  await fc.assert(
    fc.asyncProperty(texts[format], lengths, fc.integer({ min: 1, max: 40 }), async (text, pieces, rowCharsMax) => {
      const whole = await outcome(format, [text], { rowCharsMax })
      expect(await outcome(format, inPiecesOf(text, pieces), { rowCharsMax })).toEqual(whole)
    }),
    { numRuns: 1000 },
  )
})

test.each([
  ['csv', 'h\naaaa', '\n'],
  ['csv', 'h\naaaa', '\r\n'],
  ['csv', 'h\naaaa', '\r'],
  ['csv', 'h\naaaa', ''],
  ['csv', 'h\n"aa"', '\n'],
  ['csv', 'h\n"aa"', '\r\n'],
  ['csv', 'h\n"\na"', '\r'],
  ['csv', 'h\n"a",', '\n'],
  ['csv', 'h\n"a",\r\n', 'b\r\n'],
  ['ndjson', '{}  ', '\n'],
  ['ndjson', '{}  ', '\r\n'],
  ['ndjson', '{}  ', ''],
  ['json', '[{  }', ']'],
] as const)('[R10] the limit of a row of %s is exact: %j, then %j', async (format, row, end) => {
  const chars = row.replace(/^h\n|^\[|\r\n$/g, '').length
  for (let length = 1; length <= row.length + end.length; length++) {
    const of = (rowCharsMax: number): Promise<Outcome> => outcome(format, inPiecesOf(row + end, [length]), { rowCharsMax })
    expect((await of(chars)).error, `in pieces of ${length}`).toBeUndefined()
    expect((await of(chars - 1)).error?.code, `in pieces of ${length}`).toBe('row-too-long')
  }
})

test('[R10] a header with another delimiter is refused, naming the option', async () => {
  const set = defineSet('prices', {
    scope: ['shop'],
    types: { price: { key: 'sku', columns: { sku: 'text', cents: 'integer' } } },
  })
  const headerError = async (header: string, delimiter?: string): Promise<string> => {
    const options: UploadOptions = { format: 'csv', ...(delimiter !== undefined && { delimiter }) }
    const bytes = new UploadBytes([`${header}\n`], limitOf(set, 'csv'), undefined)
    try {
      for await (const _rows of sourceRows(set, bytes, options, () => undefined));
      return 'none'
    } catch (error) {
      return (error as Error).message
    }
  }
  const got = (header: string) => `The header must have the column(s) 'sku', got '${header}'.`
  const fix = (delimiter: string) => ` Was the file written with another delimiter? Give delimiter: '${delimiter}'.`
  expect(await headerError('sku;cents')).toBe(got('sku;cents') + fix(';'))
  expect(await headerError('sku\tcents')).toBe(got('sku\tcents') + fix('\\t'))
  expect(await headerError('sku,cents', ';')).toBe(got('sku,cents') + fix(','))
  expect(await headerError('id;cents')).toBe(got('id;cents'))
  expect(await headerError('sku;x,cents')).toBe(got('sku;x, cents'))
  expect(await headerError('sku;cents', ';')).toBe('none')
})
