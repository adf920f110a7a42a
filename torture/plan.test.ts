import { expect, test } from 'vitest'
import { countMerges, merges } from './interleave/scheduler.ts'
import { jobs } from './jobs/scenario.ts'
import { makePlan, stream } from './plan.ts'

test('every merge comes once, and each keeps the order of its programs', () => {
  const all = [...merges([2, 1, 3])].map((turns) => turns.join(''))
  expect(all.length).toBe(countMerges([2, 1, 3]))
  expect(all.length).toBe(60)
  expect(new Set(all).size).toBe(60)
})

test('one seed gives one plan; draws in one stream shift no other', () => {
  expect(makePlan(jobs, 7, 30)).toEqual(makePlan(jobs, 7, 30))
  expect(makePlan(jobs, 7, 30)).not.toEqual(makePlan(jobs, 8, 30))
  const first = stream(7, 'a')
  stream(7, 'b').next()
  expect(first.next()).toBe(stream(7, 'a').next())
})

test('every kind of fault comes early in a plan', () => {
  const plan = makePlan(jobs, 3, 10)
  const early = plan.workers.flatMap((slot) => plan.faults[slot]!.slice(0, 4).map((fault) => fault.kind))
  expect(new Set(early).size).toBe(10)
})
