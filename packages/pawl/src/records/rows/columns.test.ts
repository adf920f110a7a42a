import fc from 'fast-check'
import { expect, test } from 'vitest'
import { defineSet } from '../sets.ts'
import type { Column, RecordSetOptions } from '../types.ts'
import { compileCell, compileColumn, isFault } from './columns.ts'
import { compareDecimals, comparedWith } from './decimal.ts'

const coerced = (type: 'timestamp' | 'text' | 'boolean', value: unknown) => {
  const found = compileColumn({ type })(value)
  return isFault(found) ? found.code : found
}

test('[R9] spellings of a moment are one value; impossible ones are faults', () => {
  for (const text of [
    '2026-01-31T10:00:00Z',
    '2026-01-31T10:00:00.000Z',
    ' 2026-01-31 10:00Z ',
    '2026-01-31T11:30:00+01:30',
    '2026-01-31T10:00:00.0000001Z',
  ])
    expect(coerced('timestamp', text), text).toBe('"2026-01-31T10:00:00.000Z"')
  expect(coerced('timestamp', new Date('2026-01-31T10:00:00.250Z'))).toBe('"2026-01-31T10:00:00.250Z"')
  expect(coerced('timestamp', '2024-02-29T23:59:59Z')).toBe('"2024-02-29T23:59:59.000Z"')
  for (const text of [
    '2026-02-30T10:00:00Z',
    '2026-02-29T10:00:00.000Z',
    '2026-13-01T10:00:00Z',
    '2026-01-31T25:00:00Z',
    '2026-01-31T10:00:00',
  ])
    expect(coerced('timestamp', text), text).toBe('timestamp')
})

test('[R9] a string loses surrounding spaces of any kind and nothing else', () => {
  const space = fc.constantFrom('', ' ', '\t', '\n', '\u00a0', '\u2003', '\ufeff')
  fc.assert(
    fc.property(space, fc.string({ unit: 'grapheme' }), space, (before, text, after) => {
      const found = coerced('text', before + text + after)
      const trimmed = (before + text + after).trim()
      if (trimmed === '') expect(found).toBeUndefined()
      else expect(found).toBe(trimmed.includes('\u0000') ? 'nul' : JSON.stringify(trimmed))
    }),
  )
})

test('[R6] decimals are in order, whatever their length', () => {
  const decimal = fc.tuple(fc.boolean(), fc.bigInt({ min: 0n, max: 10n ** 20n }), fc.integer({ min: 0, max: 20 }))
  const textOf = ([isNegative, digits, scale]: [boolean, bigint, number]) => {
    const padded = String(digits).padStart(scale + 1, '0')
    const [whole, rest] = [padded.slice(0, padded.length - scale), padded.slice(padded.length - scale).replace(/0+$/, '')]
    return `${isNegative && digits > 0n ? '-' : ''}${whole}${rest === '' ? '' : `.${rest}`}`
  }
  const unitsOf = ([isNegative, digits, scale]: [boolean, bigint, number]) =>
    (isNegative ? -1n : 1n) * digits * 10n ** BigInt(20 - scale)
  fc.assert(
    fc.property(decimal, decimal, (a, b) => {
      const expected = unitsOf(a) < unitsOf(b) ? -1 : unitsOf(a) > unitsOf(b) ? 1 : 0
      expect(Math.sign(compareDecimals(textOf(a), textOf(b)))).toBe(expected)
      expect(Math.sign(comparedWith(textOf(b))(textOf(a)))).toBe(expected)
    }),
    { numRuns: 2_000 },
  )
  // Neighbours that a double can just tell apart.
  expect(comparedWith('99999999999.998')('99999999999.999')).toBeGreaterThan(0)
  expect(comparedWith('9007199254740992')('9007199254740993')).toBeGreaterThan(0)
})

test('[R9] a boolean is one of eight words, no property name', () => {
  for (const text of ['true', ' Yes', 'y', '1']) expect(coerced('boolean', text), text).toBe('true')
  for (const text of ['FALSE', 'no', 'N ', '0']) expect(coerced('boolean', text), text).toBe('false')
  for (const text of ['constructor', 'toString', '__proto__', 'maybe']) expect(coerced('boolean', text), text).toBe('boolean')
})

const columnOf = (column: Column) =>
  defineSet('s', { scope: ['x'], types: { t: { key: 'id', columns: { id: 'text', c: column } } } })
    .types.get('t')!
    .byName.get('c')!.column

test("[R9] a rule that the column's type ignores is refused", () => {
  const refused: Column[] = [
    { type: 'integer', oneOf: ['1', '2'] },
    { type: 'number', pattern: /^1/ },
    { type: 'date', charsMax: 3 },
    { type: 'boolean', trim: false },
    { type: 'json', min: 1 },
    { type: 'text', min: 1 },
    { type: 'integer', scale: 2 },
    { type: 'text', charsMax: 0 },
    { type: 'text', charsMax: Number.NaN },
  ]
  for (const column of refused)
    expect(() => columnOf(column), JSON.stringify(column)).toThrow(
      /^records\.define\('s'\): types\.t\.columns\.c(\.charsMax must be an integer|: a column of type)/,
    )
  const kept: Column = { type: 'text', oneOf: ['a'], pattern: /a/, charsMax: 3, trim: false, required: true }
  expect(columnOf(kept)).toEqual(kept)
})

test('[R9] a pattern with flag g or y treats every row alike', () => {
  const digits = compileColumn({ type: 'text', pattern: /^\d+$/g })
  for (const text of ['1', '22', '333', '4']) expect(digits(text)).toBe(`"${text}"`)
  const sticky = compileColumn({ type: 'text', pattern: /\d+/y })
  for (const text of ['1a', '22', 'a1', '4']) expect(isFault(sticky(text)), text).toBe(text === 'a1')
})

test('a record set with a wrong limit, duration or name is refused', () => {
  const define = (more: object) =>
    defineSet('s', { scope: ['x'], types: { t: { key: 'id', columns: { id: 'text' } } }, ...more } as RecordSetOptions)
  for (const [more, message] of [
    [{ limits: { bytesMax: '1GB' } }, /limits\.bytesMax must be an integer/],
    [{ tuning: { rowCharsMax: Number.NaN } }, /tuning\.rowCharsMax must be/],
    [{ limits: { rowMax: 5 } }, /Did you mean 'limits.rowsMax'/],
    [{ keep: { validatd: '1d' } }, /Did you mean 'keep.validated'/],
    [{ keep: { ended: Number.NaN } }, /keep\.ended must be/],
    [{ retry: { attempts: 0 } }, /retry\.attempts must be/],
    [{ retry: { maxMs: '1m' } }, /retry\.maxMs must be/],
    [{ unknownColumns: 'rejct' }, /unknownColumns must be one of/],
    [{ events: 'all' }, /events must be one of/],
    [{ chunkRows: 5 }, /Did you mean 'tuning.chunkRows'/],
    [{ types: { t: { key: 'no', columns: { id: 'text' } } } }, /types\.t\.key must name columns of the type, got 'no'/],
    [{ types: { t: { key: 'id', columns: { id: 'strng' } } } }, /columns\.id\.type must be one of 'text', .*, got 'strng'/],
    [{ scope: undefined }, /: scope must be an array, got undefined/],
    [{ scope: 'x' }, /: scope must be an array, got 'x'/],
    [{ attributes: [5] }, /: attributes\[0\] must be a string of 1 to 200 characters .*, got 5/],
    [{ types: undefined }, /: types must be an object with a type of row per name, got undefined/],
    [
      { types: { t: { columns: { id: 'text' } } } },
      /types\.t\.key must be the name of a column, or an array of names, got undefined/,
    ],
    [{ types: { t: { key: 'id' } } }, /types\.t\.columns must be an object with a column per name, got undefined/],
    [{ types: { t: { key: 'id', columns: { id: { type: 'text', pattern: '[' } } } } }, /\.pattern must be a RegExp .*got '\['/],
    [{ types: { t: { key: 'id', columns: { id: { type: 'text', oneOf: 'a' } } } } }, /\.oneOf must be an array, got 'a'/],
  ] as const) {
    expect(() => define(more), JSON.stringify(more)).toThrow(message)
    expect(() => define(more), JSON.stringify(more)).toThrow(expect.objectContaining({ code: 'PAWL_CONFIG' }))
  }
  expect(define({ limits: { rowsMax: 5 }, keep: { ended: '2d' } })).toMatchObject({
    limits: { rowsMax: 5, bytesMax: 1_073_741_824, errorsMax: 1000 },
    keepMs: { ended: 172_800_000, uploading: 3_600_000 },
  })
})

test('[R9] a date column reads its format and ISO dates only', () => {
  const day = (format: string, value: unknown) => {
    const found = compileColumn({ type: 'date', format })(value)
    return isFault(found) ? found.reason : found
  }
  for (const [format, text] of [
    ['dd/mm/yyyy', '31/01/2026'],
    ['dd/mm/yyyy', ' 31/1/2026 '],
    ['mm/dd/yyyy', '1/31/2026'],
    ['DD.MM.YYYY', '31.01.2026'],
    ['yyyy/mm/dd', '2026/01/31'],
    ['dd-mm-yyyy', '31-01-2026'],
    ['dd/mm/yyyy', '2026-01-31'],
    ['dd/mm/yyyy', new Date('2026-01-31')],
  ] as const)
    expect(day(format, text), `${format} ${text}`).toBe('"2026-01-31"')
  expect(day('dd/mm/yyyy', ' ')).toBeUndefined()
  expect(day('dd/mm/yyyy', '01/31/2026')).toBe('is a date that does not exist')
  expect(day('dd/mm/yyyy', '30/02/2026')).toBe('is a date that does not exist')
  expect(day('dd/mm/yyyy', '2026-02-30')).toBe('is a date that does not exist')
  for (const text of ['31.01.2026', '31/01/26', '31/01/2026x', 'soon'])
    expect(day('dd/mm/yyyy', text), text).toBe('must be a date such as 31/01/2026 or 2026-01-31')
  for (const format of ['dd/mm', 'dd/mm/mm', 'dd/mm-yyyy', 'ddmmyyyy', '']) {
    expect(() => columnOf({ type: 'date', format }), format).toThrow(/columns\.c\.format must be dd, mm and yyyy/)
  }
  expect(() => columnOf({ type: 'text', format: 'dd/mm/yyyy' })).toThrow(/has no option 'format'/)
})

test('[R6] an integer that JavaScript may have rounded is refused', () => {
  for (const type of ['integer', 'number', 'text', 'json'] as const) {
    const coerce = compileColumn({ type })
    for (const value of [2 ** 53, 2 ** 60, -(2 ** 60), 1e21])
      expect(coerce(value), type).toMatchObject({ reason: expect.stringMatching(/give it as a string or a bigint/) })
    expect(coerce(2n ** 60n)).toBe('"1152921504606846976"')
    if (type !== 'json') expect(coerce(Number.MAX_SAFE_INTEGER)).toBe('"9007199254740991"')
  }
})

test('[R6] a number in a json column is a number, or its digits', () => {
  const cell = compileCell({ type: 'json' })
  expect(cell('{"b":[1.50, 15e-1, -0.0, 1e-7],"a":1,"c":"1"}')).toBe('{"a":1,"b":[1.5,1.5,0,1e-7],"c":"1"}')
  for (const digits of ['9007199254740993', '12345678901234567890', '0.12345678901234567890123']) {
    const text = cell(`[${digits}]`)
    expect(text).toBe(`["${digits}"]`)
    expect(cell(text)).toBe(text)
  }
  expect(cell('1e21')).toBe('"1000000000000000000000"')
  fc.assert(
    fc.property(fc.jsonValue({ depthSize: 'small' }), (value) => {
      const text = cell(JSON.stringify([value]))
      if (isFault(text)) return
      expect(cell(text)).toBe(text)
      expect(compileColumn({ type: 'json' })(JSON.parse(text!))).toBe(text)
    }),
  )
})
