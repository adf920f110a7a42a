import fc from 'fast-check'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { NonRetryable } from '../errors.ts'
import { backoffMs } from '../kernel/retry.ts'
import { assertParses, defineKind, readPayload, retryDelayMs } from './kinds.ts'
import type { DefineOptions } from './types.ts'

const run = () => undefined
const define = (options: Partial<DefineOptions<never>> = {}) => defineKind('work', { run, ...options } as DefineOptions<never>)
const row = (attempt: number, more: { crashes?: number; max_attempts?: number } = {}) => ({
  attempt,
  crashes: 0,
  max_attempts: null,
  ...more,
})

test('a kind has defaults for everything but its handler', () => {
  expect(define()).toMatchObject({
    queue: 'default',
    timeoutMs: 900_000,
    attempts: 10,
    crashes: 3,
    payloadVersion: 1,
    share: 1,
    backoff: { initialMs: 1000, factor: 2, maxMs: 3_600_000, jitter: true },
  })
})

test('[G2] a wrong kind option names the option, value and fix', () => {
  const wrong = (options: object) => () => define(options as Partial<DefineOptions<never>>)
  const cases: [object, string | RegExp][] = [
    [{ timout: '1m' }, "define('work') has no option 'timout'. Did you mean 'timeout'?"],
    [{ retry: { attemps: 1 } }, "define('work') has no option 'retry.attemps'. Did you mean 'retry.attempts'?"],
    [{ retry: { attempts: 0 } }, "define('work'): retry.attempts must be an integer from 1 to 1000000, got 0."],
    [{ retry: 3 }, "define('work'): retry must be an object, got 3."],
    [{ retry: { initialMs: Number.NaN } }, /retry.initialMs must be an integer from 0 to \d+, got NaN/],
    [{ retry: { maxMs: Number.POSITIVE_INFINITY } }, /retry.maxMs must be an integer from 0 to \d+, got Infinity/],
    [{ retry: { factor: Number.NaN } }, /retry.factor must be a number from 1 to 1000, got NaN/],
    [{ retry: { jitter: 'no' } }, /retry.jitter must be true or false, got 'no'/],
    [{ retry: { when: true } }, /retry.when must be a function, got true/],
    [{ timeout: 'soon' }, /timeout must be a duration from 1ms to 30d: .*, got 'soon'/],
    [{ timeout: -5 }, /timeout must be a duration .*, got -5/],
    [{ durability: 'maybe' }, /durability must be one of 'relaxed', 'durable', 'replicated', got 'maybe'/],
    [{ run: 'x' }, /run must be a function, got 'x'/],
    [{ schema: { type: 'object' } }, /schema must be a Standard Schema .*, got an object/],
    [{ queue: '' }, /queue must be a string of 1 to 100 characters .*, got ''/],
    [{ queue: 'pawl.records' }, /queue must not begin with 'pawl\.'.*, got 'pawl.records'/],
    [{ concurrency: '5' }, /concurrency must be an integer from 1 to 10000, got '5'/],
    [{ share: 5 }, /share is for tx handlers/],
    [{ tx: run }, /either run or tx, not both/],
  ]
  for (const [options, message] of cases) expect(wrong(options)).toThrow(message)
  expect(() => defineKind('work', undefined as never)).toThrow("define('work'): options must be an object, got undefined.")
})

test('[G2] a name that no kind of a user may have is refused', () => {
  for (const name of ['', 'x'.repeat(201), 5, {}, null, 'a\u0000b', '\ud800', 'pawl.records.apply', ' charge', 'charge\n'])
    expect(() => defineKind(name as string, { run }), String(name)).toThrow(/^define: kind must /)
  expect(() => defineKind('charge ', { run })).toThrow(/characters .* without a space at either end, got 'charge '\.$/)
  expect(defineKind('charge a card', { run }).name).toBe('charge a card')
  expect(defineKind('pawl.records.apply', { run }, true).name).toBe('pawl.records.apply')
})

test('[J15] without jitter, delays are 1, 2, 4, 8, 16 s, then capped', () => {
  const kind = define({ retry: { jitter: false, attempts: 100 } })
  expect([1, 2, 3, 4, 5].map((attempt) => retryDelayMs(kind, row(attempt), new Error('no')))).toEqual([
    1000, 2000, 4000, 8000, 16_000,
  ])
  expect(retryDelayMs(kind, row(99), new Error('no'))).toBe(3_600_000)
})

const backoffs = fc.record({
  initialMs: fc.integer({ min: 1, max: 100_000 }),
  factor: fc.double({ min: 1, max: 10, noNaN: true }),
  maxMs: fc.integer({ min: 1, max: 10_000_000 }),
})

test('[J15] with jitter, every delay is between 0 and the one without', () => {
  fc.assert(
    fc.property(
      backoffs,
      fc.integer({ min: 1, max: 1_000_000 }),
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      (backoff, retry, random) => {
        const exact = backoffMs({ ...backoff, jitter: false }, retry)
        const jittered = backoffMs({ ...backoff, jitter: true }, retry, () => random)
        expect(exact).toBe(Math.round(Math.min(backoff.maxMs, backoff.initialMs * backoff.factor ** (Math.min(retry, 1001) - 1))))
        expect(jittered).toBeGreaterThanOrEqual(0)
        expect(jittered).toBeLessThanOrEqual(exact)
        expect(exact).toBeLessThanOrEqual(backoff.maxMs)
        expect(Number.isInteger(jittered)).toBe(true)
      },
    ),
  )
})

test('[J15] without jitter delays never shrink from one retry to the next', () => {
  fc.assert(
    fc.property(backoffs, fc.integer({ min: 1, max: 200 }), (backoff, retry) => {
      const exact = { ...backoff, jitter: false }
      expect(backoffMs(exact, retry + 1)).toBeGreaterThanOrEqual(backoffMs(exact, retry))
    }),
  )
})

test('[J15] no attempt follows the last, NonRetryable or a false `when`', () => {
  const kind = define({ retry: { attempts: 3, jitter: false, when: (error) => (error as Error).message !== 'final' } })
  expect(retryDelayMs(kind, row(2), new Error('no'))).toBe(2000)
  expect(retryDelayMs(kind, row(3), new Error('no'))).toBeUndefined()
  expect(retryDelayMs(kind, row(1), new Error('final'))).toBeUndefined()
  expect(retryDelayMs(kind, row(1), new NonRetryable('no'))).toBeUndefined()
  expect(retryDelayMs(kind, row(1, { max_attempts: 1 }), new Error('no'))).toBeUndefined()
  expect(retryDelayMs(kind, row(4, { crashes: 2 }), new Error('no'))).toBe(2000)
  expect(retryDelayMs(kind, row(5, { crashes: 2 }), new Error('no'))).toBeUndefined()
})

test('[J15] a `when` that throws is reported; its error is retried', () => {
  const broken = new TypeError('Cannot read properties of undefined')
  const kind = define({
    retry: {
      attempts: 2,
      jitter: false,
      when: () => {
        throw broken
      },
    },
  })
  const thrown: unknown[] = []
  expect(retryDelayMs(kind, row(1), new Error('no'), (error) => thrown.push(error))).toBe(1000)
  expect(retryDelayMs(kind, row(2), new Error('no'), (error) => thrown.push(error))).toBeUndefined()
  expect(thrown).toEqual([broken, broken])
})

test('[J15] a delay is finite at any retry, even where its growth overflows', () => {
  const kind = define({ retry: { initialMs: 0, factor: 1000, attempts: 1_000_000, jitter: false } })
  expect(retryDelayMs(kind, row(999_999), new Error('no'))).toBe(1)
})

test('[J15] a delay is never 0, which would mean ready at once', () => {
  const kind = define({ retry: { initialMs: 0, jitter: false } })
  expect(retryDelayMs(kind, row(1), new Error('no'))).toBe(1)
})

test('[J19] a schema failure names kind, path and reason, for any Standard Schema', async () => {
  const schema = z.object({ a: z.array(z.object({ b: z.number() })) })
  const kind = define({ schema: schema as never })
  const read = (of: typeof kind, payload: unknown) => readPayload(of, payload, 1)
  expect(() => read(kind, { a: [{ b: 1 }, { b: 'x' }] })).toThrow(
    /The payload of 'work' is not valid: payload\.a\.1\.b: .*expected number/,
  )
  const byHand = (answer: unknown) =>
    define({ schema: { '~standard': { version: 1, vendor: 'test', validate: () => answer } } as never })
  expect(() => read(byHand({ issues: [{ message: 'bad', path: [{ key: 'x' }, 0, Symbol('s')] }] }), {})).toThrow(
    /payload\.x\.0\.Symbol\(s\): bad/,
  )
  const seven = Array.from({ length: 7 }, (_, index) => ({ message: 'bad', path: [index] }))
  expect(() => read(byHand({ issues: seven }), {})).toThrow(/payload\.0: bad; payload\.1: bad; .*payload\.4: bad; and 2 more\.$/)
  expect(() => read(byHand({ issues: [] }), {})).toThrow(/does not match its schema/)
  await expect(read(byHand(Promise.resolve({ issues: [{ message: 'bad' }] })), {})).rejects.toThrow(/bad/)
  await expect(read(byHand(Promise.resolve({ value: 'changed' })), {})).resolves.toBe('changed')
})

test('[J30] a schema that cannot read the stored JSON is refused', async () => {
  const given = { at: new Date(0) }
  const stored = JSON.stringify(given)
  const dated = define({ schema: z.object({ at: z.date() }) as never })
  await expect(assertParses(dated, given, stored)).rejects.toThrow(
    /valid as given, but not after it is stored as JSON: payload\.at: .*expected date, received string.*z\.coerce\.date\(\)/,
  )
  // Wrong either way: the schema's own words.
  await expect(assertParses(dated, { at: 'x' }, '{"at":"x"}')).rejects.toThrow(/'work' is not valid: payload\.at/)
  await assertParses(define({ schema: z.object({ at: z.coerce.date() }) as never }), given, stored)
})

test('[J19] older payloads are upgraded, current ones kept, newer ones refused', () => {
  const kind = define({ payloadVersion: 3, upgrade: (payload: unknown, version: number) => ({ was: payload, version }) })
  expect(readPayload(kind, 'old', 1)).toEqual({ was: 'old', version: 1 })
  expect(readPayload(kind, 'old', 2)).toEqual({ was: 'old', version: 2 })
  expect(readPayload(kind, 'now', 3)).toBe('now')
  expect(() => readPayload(kind, 'next', 4)).toThrow(
    /has version 4, but this worker knows versions up to 3: deploy the newer code/,
  )
})

test('[J19] an older payload without upgrade is refused with the fix', () => {
  const kind = define({ payloadVersion: 2 })
  expect(() => readPayload(kind, 'old', 1)).toThrow(
    /has version 1, and define\('work'\) has payloadVersion 2 and no upgrade: give/,
  )
  expect(readPayload(kind, 'now', 2)).toBe('now')
})
