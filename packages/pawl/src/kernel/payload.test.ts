import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { isPawlError } from '../errors.ts'
import { atIndex, depthMax, fromJson, invalid, toJson } from './payload.ts'

const limits = { bytesMax: 100_000 }
const what = 'The payload'

function pathOf(value: unknown): unknown {
  try {
    toJson(value, what, limits)
  } catch (error) {
    if (isPawlError(error, 'PAWL_INVALID_PAYLOAD')) return error.details.path
    throw error
  }
  return 'it was let through'
}

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  return 1 + Math.max(0, ...Object.values(value).map(depthOf))
}

function texts(value: unknown): string[] {
  if (typeof value === 'string') return [value]
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, inner]) => [...(Array.isArray(value) ? [] : [key]), ...texts(inner)])
}

test('[J19] an accepted value is stored by PostgreSQL and read back equal', () => {
  // Any string: NUL, lone surrogates and __proto__ among them.
  const anything = fc.jsonValue({ maxDepth: 14, stringUnit: 'binary' })
  fc.assert(
    fc.property(anything, (value) => {
      const isFine =
        depthOf(value) <= depthMax &&
        texts(value).every((text) => text.isWellFormed() && !text.includes('\u0000')) &&
        !JSON.stringify(value).includes('"__proto__":') &&
        Buffer.byteLength(JSON.stringify(value)) <= limits.bytesMax
      const path = pathOf(value)
      expect(path === 'it was let through').toBe(isFine)
      if (isFine) expect(JSON.parse(toJson(value, what, limits))).toEqual(JSON.parse(JSON.stringify(value)))
    }),
    { numRuns: 150 },
  )
})

test('[J19] a planted fault is refused with its path', () => {
  const faults = fc.constantFrom('\u0000', 'a\u0000b', '\ud800', 'x\udfff')
  const steps = fc.array(fc.oneof(fc.constantFrom('a', 'b c', 'é'), fc.integer({ min: 0, max: 3 })), { maxLength: 8 })
  fc.assert(
    fc.property(faults, steps, (fault, path) => {
      const value = path.reduceRight<unknown>((inner, step) => {
        if (typeof step === 'string') return { before: 'fine', [step]: inner }
        return Array.from({ length: step + 1 }, (_, index) => (index === step ? inner : index))
      }, fault)
      expect(pathOf(value)).toBe(path.map((step) => (typeof step === 'string' ? `.${step}` : `[${step}]`)).join(''))
    }),
  )
})

class Money {
  readonly cents = 250
  toJSON() {
    return '2.50'
  }
}

class Secret {
  readonly #cents = 250
  get cents(): number {
    return this.#cents
  }
}

class Point {
  readonly x = 1
}

const cyclic: { list: unknown[] } = { list: [] }
cyclic.list.push({ back: cyclic })

const losses: Readonly<Record<string, readonly [value: unknown, says: RegExp]>> = {
  NaN: [Number.NaN, /is NaN, which JSON cannot represent/],
  Infinity: [Number.NEGATIVE_INFINITY, /is -Infinity, which JSON cannot represent/],
  'a boxed NaN': [Object(Number.NaN), /is NaN/],
  'an invalid date': [new Date('never'), /is an invalid date/],
  'a function': [() => 1, /is a function/],
  'a symbol': [Symbol('s'), /is a symbol/],
  'a BigInt': [1n, /is a BigInt.*pass it as a string/],
  'a Map': [new Map([[1, 2]]), /is a Map, whose content JSON would lose/],
  'a Set': [new Set([1]), /is a Set/],
  'a WeakMap': [new WeakMap(), /is a WeakMap/],
  'a RegExp': [/x/, /is a RegExp/],
  'bytes without toJSON': [new Uint8Array(2), /is a Uint8Array/],
  'an error': [new RangeError('x'), /is a RangeError/],
  'a class of private fields': [new Secret(), /is a Secret, whose content JSON would lose/],
  'search parameters': [new URLSearchParams('a=1'), /is a URLSearchParams/],
  headers: [new Headers({ a: 'b' }), /is a Headers/],
  'a blob': [new Blob(['x']), /is a Blob/],
  'a form': [new FormData(), /is a FormData/],
  'an iterator': [new Map([[1, 2]]).values(), /is a Map Iterator|is an Iterator/],
  'a generator': [(function* () {})(), /is a Generator/],
  'a promise': [Promise.resolve(1), /is a promise; await it/],
  'a query that was not awaited': [Object.create(Promise.resolve(1)), /is a promise; await it/],
  'undefined in an array': [[1, undefined], /is undefined.*pass null/],
  'a hole in an array': [Object.assign([], { length: 2 }), /is undefined/],
  'a named property of an array': [Object.assign([1], { groups: {} }), /is a named property of an array, which JSON would drop/],
  'a toJSON that returns NaN': [{ toJSON: () => Number.NaN }, /is NaN/],
  'a cycle': [cyclic, /contains itself/],
}

for (const [name, [value, says]] of Object.entries(losses)) {
  test(`[J30] ${name} is refused with its path`, () => {
    const paths: Readonly<Record<string, string>> = {
      'undefined in an array': '[1]',
      'a hole in an array': '[0]',
      'a named property of an array': '.groups',
      'a cycle': '.list[0].back',
    }
    const path = paths[name] ?? ''
    expect(pathOf({ a: [{ 'b c': value }] })).toBe(`.a[0].b c${path}`)
    expect(() => toJson({ a: [{ b: value }] }, what, limits)).toThrow(says)
    // At the top, and inside what has a toJSON of its own.
    expect(() => toJson(value, what, limits)).toThrow(says)
    expect(
      pathOf(
        new (class {
          toJSON() {
            return { in: value }
          }
        })(),
      ),
    ).toBe(`.in${path}`)
  })
}

test('[J30] values with toJSON and classes of plain fields become their JSON', () => {
  const url = new URL('https://pawl.dev/a')
  const at = new Date(0)
  const value = {
    at,
    url,
    price: new Money(),
    point: new Point(),
    bytes: Buffer.from('a'),
    boxed: Object('s'),
    absent: undefined,
  }
  expect(toJson(value, what, limits)).toBe(JSON.stringify(value))
  // An empty object of another realm is as plain as ours.
  expect(toJson([{}, [], Object.create(null), runInNewContext('({})')], what, limits)).toBe('[{},[],{},{}]')
  expect(toJson(Object.create(null, { a: { value: 1, enumerable: true } }), what, limits)).toBe('{"a":1}')
})

test('[J30] values that are shared until they are endless are too large, soon', () => {
  let value: unknown = 1
  for (let depth = 0; depth < 10; depth++) value = Array.from({ length: 10 }, () => value)
  expect(() => toJson(value, what, limits)).toThrow(/larger than 100000 bytes/)
})

test('[J30] of many, the index is named', () => {
  const error = atIndex(invalid(what, '.a', 'is NaN'), 7)
  expect(error).toMatchObject({ message: expect.stringContaining('at index 7'), details: { path: '.a', index: 7 } })
})

test('[J19] the limits are exact: the last byte and level are accepted', () => {
  const text = (bytes: number) => 'x'.repeat(bytes - 2)
  expect(toJson(text(limits.bytesMax), what, limits)).toHaveLength(limits.bytesMax)
  expect(() => toJson(text(limits.bytesMax + 1), what, limits)).toThrow(/larger than 100000 bytes/)
  const nested = (depth: number) => JSON.parse('['.repeat(depth) + ']'.repeat(depth)) as unknown
  expect(toJson(nested(depthMax), what, limits)).toHaveLength(2 * depthMax)
  expect(() => toJson(nested(depthMax + 1), what, limits)).toThrow(/nested more than/)
  // Many brackets side by side, or inside a string, are not depth.
  expect(
    toJson(
      Array.from({ length: 50 }, () => []),
      what,
      limits,
    ),
  ).toHaveLength(151)
  expect(toJson('[[[[[[[[[[[[[[[', what, limits)).toHaveLength(17)
})

test('[J19] what is read back is held to the same rules', () => {
  expect(() => fromJson('{"a": [{"__proto__": 1}]}', what)).toThrow(/\.a\[0\]\.__proto__ is a key/)
  expect(() => fromJson('['.repeat(depthMax + 1) + ']'.repeat(depthMax + 1), what)).toThrow(/nested more than/)
  expect(fromJson('{"a": [1, "two", null, {"b": true}]}', what)).toEqual({ a: [1, 'two', null, { b: true }] })
})

test('[J30] an integer beyond a number is refused; a fraction is rounded', () => {
  const long = `1${'0'.repeat(400)}`
  expect(() => fromJson('{"a": [{"b c": 12345678901234567890}]}', what)).toThrow(/\.a\[0\]\.b c is 12345678901234567890, which/)
  expect(() => fromJson('[9007199254740992, -9007199254740993]', what)).toThrow(/\[1\] is -9007199254740993/)
  expect(() => fromJson(long, what)).toThrow(/is 10000000000000000000\.\.\. \(401 characters\)/)
  expect(() => fromJson('12345678901234567890.00', what)).toThrow(/store it as a string/)
  expect(fromJson('[0.33333333333333333333, 3.6666666666666667]', what)).toEqual([1 / 3, 3.6666666666666665])
  const text = `{"1234567890123456789": "say \\"12345678901234567890\\", \\\\", "n": 0}`
  expect(fromJson(text, what)).toEqual(JSON.parse(text))
  expect(fromJson(`["${'1'.repeat(5_000_000)}"]`, what)).toHaveLength(1)
})

test('[J30] every number of JavaScript is read back as it was stored', () => {
  // jsonb writes all digits and no exponent.
  const plain = (value: number) => {
    const [mantissa = '', exponent = '0'] = String(value).split('e')
    const [whole = '', fraction = ''] = mantissa.replace('-', '').split('.')
    const point = whole.length + Number(exponent)
    const digits = (whole + fraction).padStart(whole.length + fraction.length + Math.max(0, -point), '0')
    const at = Math.max(0, point)
    const text = `${digits.slice(0, at).padEnd(at, '0') || '0'}${digits.length > at ? `.${digits.slice(at)}` : ''}`
    return (value < 0 ? '-' : '') + text
  }
  fc.assert(
    fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
      expect(fromJson(`[${plain(value)}]`, what)).toEqual([Object.is(value, -0) ? 0 : value])
    }),
  )
  expect(fromJson(`[${plain(1e23)}, ${plain(Number.MAX_VALUE)}, ${plain(5e-324)}]`, what)).toEqual([
    1e23,
    Number.MAX_VALUE,
    5e-324,
  ])
})

test('a message is one that can itself be stored', () => {
  for (const value of [{ '\u0000': { '\ud800': '\u0000' } }, { ['k'.repeat(50_000)]: '\u0000' }]) {
    const error = (() => {
      try {
        return toJson(value, what, limits)
      } catch (thrown) {
        return thrown
      }
    })()
    expect((error as Error).message.isWellFormed()).toBe(true)
    expect((error as Error).message).not.toContain('\u0000')
    expect((error as Error).message.length).toBeLessThan(1000)
  }
})
