import { runInNewContext } from 'node:vm'
import pg from 'pg'
import { expect, expectTypeOf, test } from 'vitest'
import { durationText } from './clock.ts'
import {
  boolean,
  duration,
  integer,
  list,
  nested,
  oneOf,
  type Resolved,
  record,
  required,
  resolve,
  signal,
  type TableOf,
  text,
  time,
  transaction,
} from './options.ts'

interface Given {
  readonly name: string
  readonly size?: number
  readonly lease?: number | string
  readonly colour?: 'red' | 'blue'
  readonly at?: Date
  readonly names?: readonly string[]
  readonly retry?: { readonly attempts?: number; readonly jitter?: boolean }
  readonly signal?: AbortSignal
}

const table = {
  name: required(text({ to: 5, doc: 'Its name.' })),
  size: integer({ from: 1, to: 10, default: 3, doc: 'Its size.' }),
  lease: duration({ from: 100, to: 3_600_000, default: '30s', doc: 'Its lease.' }),
  colour: oneOf(['red', 'blue'], { doc: 'Its colour.' }),
  at: time({ doc: 'When.' }),
  names: list(text({ to: 5, doc: 'A name.' }), { doc: 'More names.' }),
  retry: nested(
    { attempts: integer({ from: 1, to: 9, default: 5, doc: 'How often.' }), jitter: boolean({ default: true, doc: 'Whether.' }) },
    { doc: 'The retry policy.' },
  ),
  signal: signal({ doc: 'Ends it.' }),
} satisfies TableOf<Given>

const read = (given: unknown) => resolve('make', table, given)

test('what is left out gets its default, durations become milliseconds', () => {
  const retry = { attempts: 5, jitter: true }
  expect(read({ name: 'a' })).toEqual({ name: 'a', size: 3, lease: 30_000, retry })
  expect(read({ name: 'a', size: undefined, lease: '2m', retry: { attempts: 1 } })).toMatchObject({
    size: 3,
    lease: 120_000,
    retry: { attempts: 1, jitter: true },
  })
  expectTypeOf<Resolved<typeof table>['size']>().toEqualTypeOf<number>()
  expectTypeOf<Resolved<typeof table>['name']>().toEqualTypeOf<string>()
  expectTypeOf<Resolved<typeof table>['colour']>().toEqualTypeOf<'red' | 'blue' | undefined>()
  expectTypeOf<Resolved<typeof table>['retry']['attempts']>().toEqualTypeOf<number>()
})

test('[G2] a wrong value is refused with option, value and fix', () => {
  const cases: [object, string][] = [
    [{ name: 'toolong' }, "name must be a string of 1 to 5 characters (valid Unicode, no NUL), got 'toolong'"],
    [{ name: null }, 'name must be a string of 1 to 5 characters (valid Unicode, no NUL), got null'],
    [{}, 'name must be a string of 1 to 5 characters (valid Unicode, no NUL), got undefined'],
    [{ name: 'a', size: 'high' }, "size must be an integer from 1 to 10, got 'high'"],
    [{ name: 'a', size: 2.5 }, 'size must be an integer from 1 to 10, got 2.5'],
    [{ name: 'a', size: null }, 'size must be an integer from 1 to 10, got null'],
    [{ name: 'a', size: 3n }, 'size must be an integer from 1 to 10, got 3n'],
    [
      { name: 'a', lease: '2 days' },
      "lease must be a duration from 100ms to 1h: milliseconds, or a string such as '250ms', '5s', '15m', '2h', '7d', got '2 days'",
    ],
    [{ name: 'a', colour: 'green' }, "colour must be one of 'red', 'blue', got 'green'"],
    [
      { name: 'a', at: '2030-01-01' },
      "at must be a valid Date of the years 1 to 9999, such as new Date('2030-01-01T00:00:00Z'), got '2030-01-01'",
    ],
    [
      { name: 'a', at: new Date('x') },
      "at must be a valid Date of the years 1 to 9999, such as new Date('2030-01-01T00:00:00Z'), got an invalid Date",
    ],
    [{ name: 'a', names: 'b' }, "names must be an array, got 'b'"],
    [{ name: 'a', names: ['b', ''] }, "names[1] must be a string of 1 to 5 characters (valid Unicode, no NUL), got ''"],
    [{ name: 'a', retry: { attempts: 0 } }, 'retry.attempts must be an integer from 1 to 9, got 0'],
    [{ name: 'a', retry: null }, 'retry must be an object, got null'],
    [{ name: 'a', signal: {} }, 'signal must be an AbortSignal, got an object'],
  ]
  for (const [given, message] of cases)
    expect(() => read(given)).toThrow(expect.objectContaining({ code: 'PAWL_CONFIG', message: `make: ${message}.` }))
  expect(() => read(undefined)).toThrow('make: options must be an object with name, got undefined.')
  expect(() => read([])).toThrow('make: options must be an object with name, got an empty array.')
})

test('[G2] options that are no plain object are refused with their class', () => {
  class Settings {
    name = 'a'
  }
  const cases: [unknown, string][] = [
    [Promise.resolve({ name: 'a' }), 'options must be a plain object with name, got a promise (await it)'],
    [new Map([['name', 'a']]), 'options must be a plain object with name, got an instance of Map'],
    [new Settings(), 'options must be a plain object with name, got an instance of Settings'],
    [new Date(0), 'options must be a plain object with name, got 1970-01-01T00:00:00.000Z'],
    [{ name: 'a', retry: new Map() }, 'retry must be a plain object, got an instance of Map'],
    [
      { name: Promise.resolve('a') },
      'name must be a string of 1 to 5 characters (valid Unicode, no NUL), got a promise (await it)',
    ],
  ]
  for (const [given, message] of cases)
    expect(() => read(given)).toThrow(expect.objectContaining({ code: 'PAWL_CONFIG', message: `make: ${message}.` }))
  expect(() => resolve('find', { filter: record({ doc: 'Which.' }) }, { filter: new Map() })).toThrow(
    'find: filter must be an object, got an instance of Map.',
  )
  expect(() => resolve('enqueue', { tx: transaction({ doc: 'Yours.' }) }, new pg.Client())).toThrow(
    'enqueue: options must be a plain object, got an instance of Client. Pass a client as { tx }.',
  )
  expect(read(Object.assign(Object.create(null), { name: 'a' })).name).toBe('a')
  expect(read(runInNewContext("({ name: 'a' })")).name).toBe('a')
})

test('[G2] an unknown option names the one that was meant, or all', () => {
  const wrong = (given: object) => () => read({ name: 'a', ...given })
  expect(wrong({ colur: 'red' })).toThrow("make has no option 'colur'. Did you mean 'colour'?")
  expect(wrong({ SIZE: 1 })).toThrow("Did you mean 'size'?")
  expect(wrong({ maxSize: 1 })).toThrow("Did you mean 'size'?")
  expect(wrong({ retry: { atempts: 1 } })).toThrow("make has no option 'retry.atempts'. Did you mean 'retry.attempts'?")
  expect(wrong({ zebra: 1 })).toThrow(
    "make has no option 'zebra'. Its options are name, size, lease, colour, at, names, retry, signal.",
  )
  expect(wrong({ x: 1 })).toThrow(/Its options are/)
})

test('a value in an error is bounded and can be stored', () => {
  const thrown = (() => {
    try {
      return read({ name: `\u0000${'x'.repeat(1000)}` })
    } catch (error) {
      return error as Error
    }
  })() as Error
  expect(thrown.message).not.toContain('\u0000')
  expect(thrown.message.length).toBeLessThan(200)
})

test('characters are counted as PostgreSQL counts them', () => {
  expect(read({ name: '😀😀😀😀😀' }).name).toHaveLength(10)
  expect(() => read({ name: '😀😀😀😀😀😀' })).toThrow(/1 to 5 characters/)
})

test('bounds of durations are written in their largest unit', () => {
  expect([0, 1, 100, 1000, 90_000, 3_600_000, 86_400_000].map(durationText)).toEqual([
    '0ms',
    '1ms',
    '100ms',
    '1s',
    '90s',
    '1h',
    '1d',
  ])
})

test('[G2] a tx that is undefined is refused', () => {
  const verb = { tx: transaction({ doc: 'Yours.' }), size: integer({ from: 1, to: 10, doc: 'Its size.' }) }
  expect(resolve('enqueue', verb, {})).toEqual({})
  expect(resolve('enqueue', verb, { size: undefined })).toEqual({})
  expect(() => resolve('enqueue', verb, { tx: undefined })).toThrow(
    "enqueue: tx must be your transaction, or be left out for one of Pawl's own, got undefined.",
  )
})
