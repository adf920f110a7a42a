// What this process gives back because it cannot start it.

import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { attemptOf, type Observed, observed } from '../../test/support/attempt.ts'
import { Board } from '../kernel/keeper/board.ts'
import { Wakeup } from '../kernel/service.ts'
import type { Attempt } from './attempt.ts'
import { defineKind } from './kinds.ts'
import { Slots } from './slots.ts'

const kind = defineKind('work', { run: () => undefined })
let runtime: Observed
/** Ends of what runs, in the order of starts. */
let running: (() => void)[]
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] })
  runtime = observed()
  running = []
})
afterEach(() => void vi.useRealTimers())

function createSlots(concurrency: number): Slots {
  return new Slots({
    concurrency,
    txMax: concurrency,
    bufferMs: 60_000,
    board: new Board(100),
    settler: { isFull: false },
    changed: new Wakeup(),
    run: (attempt) =>
      new Promise((resolve) =>
        running.push(() => {
          attempt.finish('settled')
          resolve()
        }),
      ),
    runShared: () => new Promise(() => undefined),
  })
}

function jobs(count: number): Attempt[] {
  return Array.from({ length: count }, (_, index) => attemptOf(kind, runtime, String(index)))
}

function passMs(slots: Slots, ms: number): void {
  for (let passed = 0; passed < ms; passed += 50) {
    vi.advanceTimersByTime(50)
    slots.tick(performance.now())
  }
}

/** All that run end after this time. */
async function endAll(ms: number): Promise<void> {
  vi.advanceTimersByTime(ms)
  for (const end of running.splice(0)) end()
  await new Promise((resolve) => setImmediate(resolve))
}

/** A worker of two slots that has learnt that its jobs take 5 ms, with two running and 100 waiting. */
async function busySlots(): Promise<Slots> {
  const slots = createSlots(2)
  slots.add(jobs(2))
  await endAll(5)
  slots.tick(performance.now())
  slots.add(jobs(102))
  expect([slots.running, slots.buffered]).toEqual([2, 100])
  return slots
}

test('[J33] a stall of a fifth of a second gives nothing back', async () => {
  const slots = await busySlots()
  passMs(slots, 200)
  await endAll(0)
  // The two that ended have made the mean five times as long.
  slots.tick(performance.now())
  expect([runtime.released.length, slots.buffered]).toEqual([0, 98])
})

test('[J33] what waits behind long jobs is given back within half a second', async () => {
  const slots = await busySlots()
  passMs(slots, 450)
  expect([runtime.released.length, slots.buffered]).toEqual([100, 0])
  expect(slots.startsSoon()).toBe(0)
})

test('[J33] what will not start within a second is soon given back', async () => {
  const slots = await busySlots()
  for (let rounds = 0; rounds < 5; rounds++) {
    passMs(slots, 50)
    await endAll(50)
    slots.tick(performance.now())
  }
  expect([runtime.released.length, slots.buffered]).toEqual([0, 90])
  passMs(slots, 50)
  expect(slots.buffered).toBe(2 * slots.startsSoon())
  expect(runtime.released).toHaveLength(90 - slots.buffered)
})
