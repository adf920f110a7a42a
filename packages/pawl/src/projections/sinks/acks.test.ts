import fc from 'fast-check'
import type { LogEvent } from 'pawl'
import { expect, test } from 'vitest'
import { Acks } from './acks.ts'

const eventAt = (position: number) => ({ position, id: `e${position}`, generation: 1 }) as LogEvent
const start = { position: 0, eventId: null, logGeneration: null }

/** The positions that a row says are finished, up to a limit. */
function finishedOf({ place, done }: ReturnType<Acks['at']>, limit: number): Set<number> {
  const finished = new Set(Array.from({ length: place.position }, (_, n) => n + 1))
  for (const [, from, to] of done.matchAll(/\[(\d+),(\d+)\)/g))
    for (let n = Number(from); n < Number(to) && n <= limit; n++) finished.add(n)
  return finished
}

test('the position follows finished events; those above it are ranges', () => {
  const acks = new Acks(start, '{}')
  acks.add([1, 2, 4, 5, 7].map(eventAt), 8)
  expect(acks.at()).toMatchObject({ place: { position: 0 }, done: '{[3,4),[6,7),[8,9)}' })
  acks.finish(2)
  expect(acks.at()).toMatchObject({ place: { position: 0 }, done: '{[2,4),[6,7),[8,9)}' })
  acks.finish(1)
  // 3 is not ours: the place is an event whose id is known, and 3 is above it.
  expect(acks.at()).toEqual({ place: { position: 2, eventId: 'e2', logGeneration: 1 }, done: '{[3,4),[6,7),[8,9)}' })
  for (const position of [4, 5, 7]) acks.finish(position)
  expect(acks.at()).toMatchObject({ place: { position: 7 }, done: '{[8,9)}' })
})

test('positions of other channels are passed together, not one by one', () => {
  const acks = new Acks(start, '{}')
  acks.add([eventAt(2)], 3)
  expect(acks.unpassed).toBe(0)
  acks.finish(2)
  expect(acks.unpassed).toBe(1)
  const { version } = acks
  acks.add([], 9)
  expect(acks).toMatchObject({ version, unpassed: 7 })
  acks.pass({ position: 8, eventId: 'e8', logGeneration: 1 })
  expect(acks.at().place.position).toBe(2)
  acks.pass({ position: 9, eventId: 'e9', logGeneration: 1 })
  expect(acks.version).toBe(version + 1)
  expect(acks.at()).toEqual({ place: { position: 9, eventId: 'e9', logGeneration: 1 }, done: '{}' })
})

test('memory follows the open events, not the finished ones above them', () => {
  const acks = new Acks(start, '{}')
  acks.add([1].map(eventAt), 1)
  for (let n = 2; n <= 20_000; n++) {
    acks.add([eventAt(n)], n)
    if (n % 5000 !== 0) acks.finish(n)
  }
  expect(acks.kept).toBeLessThan(50)
  acks.finish(1)
  expect(acks.at().place).toMatchObject({ position: 4999, eventId: 'e4999' })
  for (const position of [5000, 10_000, 15_000]) acks.finish(position)
  expect(acks.at().place).toMatchObject({ position: 19_999, eventId: 'e19999' })
})

test('in any order of ends the row has exactly what is finished', () => {
  const script = fc.array(fc.record({ mine: fc.boolean(), ends: fc.boolean(), isStored: fc.boolean() }), {
    minLength: 1,
    maxLength: 60,
  })
  fc.assert(
    fc.property(script, fc.integer({ min: 1, max: 10 }), fc.infiniteStream(fc.nat()), (log, page, random) => {
      const finished = new Set<number>()
      let row: ReturnType<Acks['at']> = { place: start, done: '{}' }
      // Two holders, one after the other, each reading the log in pages from where the row is.
      for (const holder of [1, 2]) {
        const acks = new Acks(row.place, row.done)
        const open: number[] = []
        for (let from = row.place.position; from < log.length; from += page) {
          const to = Math.min(log.length, from + page)
          const events = log.slice(from, to).flatMap(({ mine }, n) => (mine ? [eventAt(from + n + 1)] : []))
          for (const { position } of acks.add(events, to)) {
            expect(finished.has(position)).toBe(false)
            open.push(position)
          }
          for (let n = open.length; n > 0; n--) {
            const [position] = open.splice(random.next().value! % open.length, 1)
            if (holder === 1 && !log[position! - 1]!.ends) continue
            acks.finish(position!)
            finished.add(position!)
            if (!log[position! - 1]!.isStored) continue
            row = acks.at()
            acks.stored(row.place)
            for (const each of finishedOf(row, log.length)) if (log[each - 1]!.mine) expect(finished.has(each)).toBe(true)
            for (const each of finished) expect(finishedOf(row, log.length).has(each)).toBe(true)
          }
        }
        row = acks.at()
        for (const each of finished) expect(finishedOf(row, log.length).has(each)).toBe(true)
      }
    }),
    { numRuns: 300 },
  )
})
