import fc from 'fast-check'
import { expect, test } from 'vitest'
import { canonicalDecimal } from './decimal.ts'
import { canonicalField, canonicalJson, canonicalRow, ExactNumber, numberText, parseJson, Unstorable } from './json-text.ts'

/** Numbers as doubles again. */
function rounded(value: unknown): unknown {
  if (value instanceof ExactNumber) return Number(value.text)
  if (Array.isArray(value)) return value.map(rounded)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, rounded(field)]))
}

test('[R6] reading keeps every digit, and is JSON.parse in everything else', () => {
  const long = fc.constantFrom('123456789012345678901234567890', '0.12345678901234567890', '-1e3', '1E-7', '1.0e+2')
  fc.assert(
    fc.property(fc.jsonValue(), long, fc.string(), (value, number, text) => {
      const json = `{"x":${JSON.stringify(value)},"n":${number},"m":[${number},${JSON.stringify(text)}],"__proto__":{"y":${number}}}`
      const parsed = parseJson(json) as Record<string, unknown>
      expect(rounded(parsed)).toEqual(JSON.parse(json))
      expect(Object.keys(parsed)).toEqual(['x', 'n', 'm', '__proto__'])
      expect(numberText(parsed.n)).toBe(canonicalDecimal(number))
      expect((parsed.m as unknown[])[1]).toBe(text)
    }),
  )
})

test('[R6] no text can pass for a number', () => {
  const texts = ['\u00017', '\u0001', '7', '{"text":"7"}', '\u00011e3']
  for (const text of texts) {
    expect(parseJson(`[${JSON.stringify(text)},12345678901234567890]`)).toEqual([text, new ExactNumber('12345678901234567890')])
    expect(canonicalRow({ a: text })).toBe(`{"a":${JSON.stringify(text)}}`)
    expect(canonicalRow({ text })).toBe(`{"text":${JSON.stringify(text)}}`)
  }
  expect(canonicalRow(parseJson('{"text":12345678901234567890}') as object)).toBe('{"text":"12345678901234567890"}')
})

test('[R6] a value may be nested as deep as it is long', () => {
  const deep = `${'['.repeat(100_000)}12345678901234567890${']'.repeat(100_000)}`
  let value = parseJson(deep)
  for (let depth = 0; depth < 100_000; depth++) value = (value as unknown[])[0]
  expect(value).toEqual(new ExactNumber('12345678901234567890'))
})

test('[R6] a date that is none, and an error, cannot be stored', () => {
  for (const value of [new Date(Number.NaN), new Error('has the spreadsheet error #REF!')])
    expect(() => canonicalJson({ a: [value] })).toThrow(Unstorable)
})

test('values that JSON drops are refused, and toJSON is used', () => {
  for (const [value, name] of [
    [new Map([['a', 1]]), 'Map, whose content JSON would lose'],
    [new Set([1]), 'Set, whose content JSON would lose'],
    [/x/, 'RegExp, whose content JSON would lose'],
    [new Uint8Array(2), 'Uint8Array, whose content JSON would lose'],
    [Promise.resolve(1), 'promise; await it'],
    [{ deep: [new Map()] }, 'Map, whose content JSON would lose'],
    [new URLSearchParams('a=1'), 'URLSearchParams, whose content JSON would lose'],
  ] as const)
    expect(() => canonicalJson(value), name).toThrow(`contains a value that is a ${name}`)
  class Money {
    readonly amount = '5'
  }
  class Decimal extends Money {
    toJSON(): string {
      return this.amount
    }
  }
  expect(canonicalJson([new Money(), new Decimal(), new Number(5), new String('x'), Object.create(null)])).toBe(
    '[{"amount":"5"},"5",5,"x",{}]',
  )
})

test('[R6] a number becomes a string as a field, not inside one', () => {
  const row = { n: 1.5, boxed: new Number(2), big: 3n, nested: { n: 1, list: [2, 9007199254740993n] }, deep: 4 }
  expect(canonicalRow(row, new Set(['deep']))).toBe(
    '{"big":"3","boxed":"2","deep":4,"n":"1.5","nested":{"list":[2,"9007199254740993"],"n":1}}',
  )
  expect(canonicalField([1])).toBe('[1]')
})
