import { expect, test } from 'vitest'
import { configError, pawlOfNowhere } from '../../test/support/nowhere.ts'
import { defineSink, retryDelayMs } from './definition.ts'

test('[G2] a projection, reaction or sink refuses wrong options', () => {
  const { projections } = pawlOfNowhere()
  const each = () => undefined
  const table = { name: 't', key: ['id'], columns: ['id'] }
  const wrong: [object | undefined, RegExp][] = [
    [undefined, /options must be an object, got undefined/],
    [{ kind: 'stat', entity: each, refresh: each }, /^define\('p'\): kind must be one of 'log', 'state', got 'stat'\.$/],
    [{ each: 'x' }, /each must be a function, got 'x'/],
    [{ on: { Added: 5 } }, /^define\('p'\): on.Added must be a function, got 5/],
    [{ on: {} }, /on must name at least one type of event/],
    [{ on: 'x' }, /on must be an object with a function per type of event, got 'x'/],
    [{ each, from: 'begin' }, /from must be one of 'start', 'oldest', 'now', got 'begin'/],
    [{ each, channel: 5 }, /channel must be a string of 1 to 100 characters .*, got 5/],
    [{ each, timeout: 'soon' }, /timeout must be a duration/],
    [{ each, retry: { initialMs: '1s' } }, /retry.initialMs must be an integer .*, got '1s'/],
    [{ each, retry: { atempts: 1 } }, /Did you mean 'retry.attempts'/],
    [{ each, tables: table }, /tables must be an array, got an object/],
    [{ each, tables: [{ ...table, key: 'id' }] }, /tables\[0\].key must be an array, got 'id'/],
    [{ kind: 'state', entity: each }, /^define\('p'\): give one of refresh and refreshMany\.$/],
    [{ kind: 'state', entity: each, refresh: each, refreshMany: each }, /give one of refresh and refreshMany/],
    [{ kind: 'state', entity: each, refreshMany: each, concurrency: 2 }, /one refresher at a time, got concurrency 2/],
    [{ kind: 'state', entity: each, refreshMany: each, tuning: { batchMax: 0 } }, /tuning.batchMax must be an integer/],
    [{ each, batchMax: 5 }, /Did you mean 'tuning.batchMax'/],
  ]
  for (const [options, message] of wrong) expect(() => projections.define('p', options as never)).toThrow(configError(message))
  expect(() => projections.sink('s', { handle: each, retry: { factor: 0 } })).toThrow(configError(/^sink\('s'\): retry.factor/))
  const wrongReaction: [unknown, RegExp][] = [
    [{}, /^react\('r'\): give a handler: one of on and each\.$/],
    [{ on: {} }, /on must name at least one type of event/],
    [{ each, batch: each }, /^react\('r'\)/],
    [{ each, tables: [table] }, /^react\('r'\)/],
    [{ each, generation: 2 }, /^react\('r'\)/],
  ]
  for (const [options, message] of wrongReaction)
    expect(() => projections.react('r', options as never)).toThrow(configError(message))
  const state = { kind: 'state', entity: each, refresh: each, generation: 2 }
  expect(() => projections.define('p', state as never)).toThrow(configError(/without tables is never rebuilt/))
  projections.sink('s', { handle: each })
  expect(() => projections.define('', { each })).toThrow(configError(/^define: name must be a string of 1 to 100 characters/))
})

test('a retry policy keeps the defaults of what it does not name', () => {
  const { retry } = defineSink('', 's', { handle: () => undefined, retry: { crashes: 2, initialMs: 5 } })
  expect(retry).toEqual({ attempts: 40, crashes: 2, initialMs: 5, factor: 2, maxMs: 60_000, jitter: true })
})

test('with default retries no sink key is parked within five minutes', () => {
  const sink = defineSink('', 's', { handle: () => undefined })
  const lasted = Array.from({ length: 2000 }, () => {
    let atMs = 0
    for (let failures = 1; ; failures++) {
      const delayMs = retryDelayMs(sink, failures, new Error('away'), () => undefined)
      if (delayMs === undefined) return atMs / 60_000
      atMs += delayMs
    }
  }).sort((a, b) => a - b)
  expect(lasted[0]).toBeGreaterThan(5)
  expect(lasted[1000]).toBeGreaterThan(15)
})

test('[G2] what is done to projections refuses wrong options', async () => {
  const { projections } = pawlOfNowhere()
  const act = { reason: 'a test' }
  const wrong: [() => Promise<unknown>, RegExp][] = [
    [() => projections.pause('p', undefined as never), /^pause: options must be an object with reason, got undefined/],
    [() => projections.pause('p', { reason: ' ' }), /reason must be a string of 1 to 2000 characters, not only spaces, got ' '/],
    [() => projections.resume('p', { ...act, generation: '2' as never }), /generation must be an integer .*, got '2'/],
    [() => projections.skip('p', { ...act, position: 0 }), /position must be an integer from 1/],
    [() => projections.unpark('p', { ...act, key: 5 as never }), /key must be a string of 1 to 500/],
    [() => projections.parked('p', { limit: 'all' as never }), /limit must be an integer from 1 to 10000, got 'all'/],
    [() => projections.parked('p', { after: '7' }), /after must be the next of the previous page, got '7'/],
    [() => projections.seen('p', '5:1', { timeout: 'long' }), /timeout must be a duration/],
    [() => projections.seen('p', '5:1', { timout: 5 } as never), /Did you mean 'timeout'/],
    [() => projections.rebuild('p', {} as never), /^rebuild: reason must be/],
    [() => projections.switchTo('p', { ...act, generation: 2, mayDiffer: 'yes' as never }), /mayDiffer must be true or false/],
    [() => projections.retire('p', act as never), /generation must be an integer .*, got undefined/],
  ]
  for (const [call, message] of wrong) await expect(call()).rejects.toThrow(configError(message))
})
