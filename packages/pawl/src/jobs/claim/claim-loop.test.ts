// What the loop asks for and when, without a database: claims that are answered by the test, and a clock that it moves.

import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { observed } from '../../../test/support/attempt.ts'
import { until } from '../../../test/support/database.ts'
import { Board } from '../../kernel/keeper/board.ts'
import type { Sleep } from '../../kernel/service.ts'
import { Wakeup } from '../../kernel/service.ts'
import type { Attempt, ClaimedRow } from '../attempt.ts'
import { type DefinedKind, defineKind } from '../kinds.ts'
import type { Settler } from '../settle.ts'
import { Slots } from '../slots.ts'
import { ClaimLoop } from './claim-loop.ts'
import type { Claim, Deciding, Fetcher, SuspectClaim } from './fetcher.ts'

const work = defineKind('work', { run: () => undefined })
const hourMs = 3_600_000

let nowMs = 0
beforeEach(() => {
  nowMs = 1_000_000
})
afterEach(() => {
  vi.restoreAllMocks()
})

const moveClock = () => vi.spyOn(performance, 'now').mockImplementation(() => nowMs)

let lastId = 0
function row(): ClaimedRow {
  const id = String(++lastId)
  const given = { tenant: '', id, fence: '1', kind: 'work', payload: '{}', payload_version: 1, attempt: 1, max_attempts: 5 }
  return { ...given, crashes: 0, headers: null, due_us: '0', queue: 'default' }
}
const rows = (count: number) => Array.from({ length: count }, row)

const nothing: Claim = { rows: [], isFull: false, isExhausted: true }
const noSuspects: SuspectClaim = { rows: [], deciding: undefined, isSuspectLeft: false, isDecidingLeft: false }

interface Answers {
  readonly concurrency?: number
  /** How a job runs; by default until the test ends it. */
  readonly run?: (held: Attempt) => Promise<unknown>
  readonly claim?: (limit: number, asked: { readonly queue: string; readonly kind: string }) => Claim
  readonly suspects?: (limit: number) => SuspectClaim
  readonly kinds?: readonly DefinedKind[]
  readonly queues?: readonly string[]
  readonly pollMs?: number
  readonly isRelied?: boolean
}

function start(answers: Answers) {
  const { concurrency = 4, run, claim = () => nothing, suspects = () => noSuspects } = answers
  const { kinds = [work], queues = ['default'], pollMs = hourMs, isRelied = false } = answers
  const stop = new AbortController()
  const changed = new Wakeup()
  const runtime = observed()
  const { started } = runtime
  /** What each claim of suspects was to do with one that must run alone. */
  const looks: Deciding[] = []
  const ends = new Map<string, () => void>()
  let reconciled = 0
  const slots = new Slots({
    concurrency,
    txMax: concurrency,
    bufferMs: hourMs,
    board: new Board(100),
    settler: { isFull: false },
    changed,
    run: async (attempt) => {
      await (run?.(attempt) ?? new Promise<void>((resolve) => ends.set(attempt.id, resolve)))
      attempt.finish('settled')
    },
    runShared: () => new Promise(() => undefined),
  })
  const fetcher: Partial<Fetcher> = {
    claim: async (_worker, queues, kinds, limit) => claim(limit, { queue: queues[0]!, kind: kinds[0]!.name }),
    claimSuspects: async (_worker, _queues, _kinds, { limit, deciding }) => {
      looks.push(deciding)
      return suspects(limit)
    },
    startAlone: async () => true,
    releaseUnknown: async () => {
      reconciled++
      return 0
    },
    rowsIn: () => 1_000_000,
    nextFullScanInMs: undefined as never,
    nextScanInMs: () => Number.POSITIVE_INFINITY,
  }
  const sleep = { isBusy: false, isRelied: () => isRelied, worked: async () => undefined, idle: async () => pollMs }
  const holder = { id: 1, nonce: '' }
  const loop = new ClaimLoop({
    batchMax: 100,
    concurrency,
    pollMs,
    queues,
    deciding: 'alone',
    kinds: new Map(kinds.map((kind) => [kind.name, kind])),
    changed,
    runtime,
    fetcher: fetcher as Fetcher,
    settler: { unsettled: 0, pending: 0, isFull: false, attempts: () => [] } as unknown as Settler,
    sleep: sleep as unknown as Sleep,
    slots,
    process: { signal: stop.signal, holder },
    events: { emit: () => undefined },
    loop: { succeeded: () => undefined, failed: () => undefined },
  })
  const waits = vi.spyOn(changed, 'wait')
  const running = loop.run()
  onTestFinished(async () => {
    stop.abort()
    changed.fire()
    await running
  })
  return {
    started,
    postponed: () => runtime.released,
    looks,
    waits,
    end: (held: Attempt) => ends.get(held.id)!(),
    reconciled: () => reconciled,
    wake: () => changed.fire(),
    /** Wakes the loop, which claims again: while it holds jobs, four times a second. */
    async turn(passMs = 0): Promise<Deciding> {
      const before = looks.length
      nowMs += passMs
      loop.heard()
      await until('it claims suspects', () => looks.length > before)
      return looks[before]!
    },
  }
}

test('[J3] while both wait, one of eight starts is a suspect', async () => {
  const { started } = start({
    concurrency: 8,
    run: () => new Promise((resolve) => setImmediate(resolve)),
    claim: (limit) => ({ rows: rows(limit), isFull: true, isExhausted: false }),
    suspects: (limit) => ({ ...noSuspects, rows: rows(limit), isSuspectLeft: true }),
  })
  await until('many have started', () => started.length > 1600)
  const share = started.slice(0, 1600).filter(({ isSuspect }) => isSuspect).length / 1600
  expect(share).toBeGreaterThan(0.1)
  expect(share).toBeLessThan(0.25)
})

test('[J21] a drain in vain leaves deciding jobs to others for five minutes', async () => {
  moveClock()
  let isFirst = true
  const decides = row()
  const loop = start({
    claim: () => (isFirst ? { ...nothing, rows: rows(1) } : nothing),
    suspects: () => {
      const deciding = isFirst ? decides : undefined
      isFirst = false
      return { ...noSuspects, deciding }
    },
  })
  await until('it empties itself', () => loop.looks.length === 1)
  nowMs += 30_000
  loop.wake()
  await until('it gives up', () => loop.postponed().length === 1)
  expect(loop.postponed()).toEqual([decides.id])
  expect(await loop.turn(250)).toBe('leave')
  expect(await loop.turn(299_749)).toBe('leave')
  expect(await loop.turn(250)).toBe('alone')
})

test('[J21] after a deciding run others get as long as they waited', async () => {
  moveClock()
  let decides: ClaimedRow | undefined = row()
  let isReady = false
  const loop = start({
    claim: () => ({ ...nothing, rows: isReady ? rows(1) : [] }),
    suspects: () => {
      const deciding = decides
      decides = undefined
      return { ...noSuspects, deciding }
    },
  })
  await until('it runs', () => loop.started.length === 1)
  nowMs += 5000
  isReady = true
  loop.end(loop.started[0]!)
  await until('another runs', () => loop.started.length > 1)
  isReady = false
  expect(await loop.turn(250)).toBe('leave')
  expect(await loop.turn(4749)).toBe('leave')
  expect(await loop.turn(250)).toBe('alone')
})

test('a claim without an answer is given back for two minutes', async () => {
  moveClock()
  let hasFailed = false
  const loop = start({
    claim: () => {
      if (hasFailed) return nothing
      hasFailed = true
      throw new Error('Connection terminated')
    },
  })
  await until('it gives back at once', () => loop.reconciled() === 1)
  await loop.turn()
  expect(loop.reconciled()).toBe(1)
  for (let ms = 0; ms < 240_000; ms += 5001) {
    nowMs += 5001
    await loop.turn()
  }
  // Once every five seconds until two minutes are over.
  expect(loop.reconciled()).toBe(1 + Math.floor(120_000 / 5001))
})

const limitedKinds = (count: number) =>
  Array.from({ length: count }, (_, n) => defineKind(`limited ${n}`, { concurrency: 1, run: () => undefined }))
const queueNames = (count: number) => Array.from({ length: count }, (_, n) => `queue ${n}`)

test.each([
  { kinds: 10, queues: 10, isRelied: true, waitsMs: 22_500 },
  { kinds: 100, queues: 100, isRelied: true, waitsMs: 60_000 },
  { kinds: 100, queues: 100, isRelied: false, waitsMs: 2000 },
])('$kinds limited kinds in $queues queues, notified $isRelied: polls every $waitsMs ms', async (given) => {
  moveClock()
  let claims = 0
  const { waits } = start({
    kinds: limitedKinds(given.kinds),
    queues: queueNames(given.queues),
    isRelied: given.isRelied,
    pollMs: 2000,
    claim: () => {
      claims++
      return nothing
    },
  })
  await until('it waits', () => waits.mock.calls.length > 0)
  expect(waits.mock.calls[0]).toEqual([given.waitsMs])
  expect(claims).toBe(given.kinds)
})

test.each([
  [2, 2],
  [3, 3],
  [4, 2],
])('of %i groups and %i full queues, each pair comes first once', async (groups, queues) => {
  const met = new Set<string>()
  let claims = 0
  const loop = start({
    concurrency: 2,
    kinds: [work, ...limitedKinds(groups - 1)],
    queues: queueNames(queues),
    run: () => new Promise((resolve) => setImmediate(resolve)),
    claim: (limit, { queue, kind }) => {
      claims++
      met.add(`${kind} in ${queue}`)
      return { rows: rows(limit), isFull: true, isExhausted: false }
    },
  })
  await until('many claims', () => {
    loop.wake()
    return claims >= 60 * groups * queues
  })
  expect(met.size).toBe(groups * queues)
})
