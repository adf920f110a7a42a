// What this process starts of what it holds, and what it gives back because it cannot start it soon.

import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { attemptOf, type Observed, observed } from '../../test/support/attempt.ts'
import { deferred } from '../../test/support/database.ts'
import { Board } from '../kernel/keeper/board.ts'
import { Wakeup } from '../kernel/service.ts'
import { type DefinedKind, defineKind } from './kinds.ts'
import { Slots, type SlotsOptions } from './slots.ts'
import type { SharedEnd } from './tx/shared.ts'

let nowMs: number
let runtime: Observed
/** What ends the handler of a job that runs. */
let ends: Map<string, () => void>
beforeEach(() => {
  nowMs = 1_000_000
  runtime = observed()
  ends = new Map()
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs)
})
afterEach(() => {
  vi.restoreAllMocks()
})

function createSlots(options: Partial<SlotsOptions> = {}): Slots {
  return new Slots({
    concurrency: 1,
    txMax: 1,
    bufferMs: 10_000,
    board: new Board(10),
    settler: { isFull: false },
    changed: new Wakeup(),
    run: (attempt) =>
      new Promise((resolve) =>
        ends.set(attempt.id, () => {
          attempt.finish('settled')
          resolve()
        }),
      ),
    runShared: () => new Promise(() => undefined),
    ...options,
  })
}

const job = (id: string, kind: DefinedKind) => attemptOf(kind, runtime, id)
const started = () => runtime.started.map(({ id }) => id)

/** A handler ends, and everything that follows from it. */
async function end(id: string): Promise<void> {
  ends.get(id)!()
  await new Promise(setImmediate)
}

const work = defineKind('work', { run: () => undefined })

test('a suspect that cannot start is given back like any other', () => {
  const slots = createSlots()
  const jobs = ['1', '2'].map((id) => attemptOf(work, runtime, id, true))
  slots.addFirst(jobs)
  slots.tick(nowMs)
  expect(runtime.released).toEqual(['2'])
})

test('no more tx handlers start than connections, and other jobs pass them', async () => {
  const slots = createSlots({ concurrency: 4, txMax: 2 })
  const tx = defineKind('tx', { tx: () => undefined })
  slots.add([...['1', '2', '3'].map((id) => job(id, tx)), job('4', work)])
  expect(started()).toEqual(['1', '2', '4'])
  await end('2')
  expect(started()).toEqual(['1', '2', '4', '3'])
})

test('a job that waited half of the buffer time is given back', async () => {
  const narrow = defineKind('narrow', { concurrency: 1, run: () => undefined })
  const slots = createSlots({ concurrency: 2 })
  slots.add([job('1', narrow), job('2', narrow)])
  slots.add([job('3', work)])
  nowMs++
  await end('3')
  nowMs += 4999
  // By the mean of its kind this one ends in a millisecond, and 500 more start in the next half second.
  slots.add([job('4', work)])
  slots.tick(nowMs)
  expect(runtime.released).toEqual([])
  nowMs++
  slots.tick(nowMs)
  expect(runtime.released).toEqual(['2'])
})

test('a job whose shared transaction failed is not given back', async () => {
  const shared = deferred<SharedEnd>()
  const slots = createSlots({ runShared: () => shared.promise })
  const shares = defineKind('shares', { share: 10, tx: () => undefined })
  const group = ['1', '2'].map((id) => job(id, shares))
  slots.add(group)
  shared.resolve({ again: group, unstarted: [] })
  await new Promise(setImmediate)
  expect(started()).toEqual(['1', '2', '1'])
  nowMs += 60_000
  slots.tick(nowMs)
  expect(runtime.released).toEqual([])
  await end('1')
  expect(started()).toEqual(['1', '2', '1', '2'])
})
