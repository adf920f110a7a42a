import { expect, test } from 'vitest'
import { jobs } from './jobs/scenario.ts'
import { ddmin, minimise } from './minimise.ts'
import { makePlan, type Plan, type PlannedFault } from './plan.ts'

const numbers = Array.from({ length: 40 }, (_, index) => index)

test.each([
  [[17], 'one culprit'],
  [[3, 31], 'two far apart'],
  [[0, 1, 2], 'three beside each other'],
  [[5, 18, 19, 39], 'four'],
])('what is left is exactly what it takes: %s (%s)', async (culprits) => {
  let asked = 0
  const left = await ddmin(numbers, async (list) => {
    asked++
    return culprits.every((culprit) => list.includes(culprit))
  })
  expect(left).toEqual(culprits)
  expect(asked).toBeLessThan(130)
})

test('what fails without any fault needs none', async () => {
  expect(await ddmin(numbers, async () => true)).toEqual([])
})

const plan = makePlan(jobs, 5, 10)
const faultsOf = (candidate: Plan) => Object.values(candidate.faults).flat()
const say = () => undefined

test('a plan that fails sometimes is minimised with its rate of failure', async () => {
  const culprits = [plan.faults.w1![1]!, plan.faults.w3![2]!]
  let turn = 0
  const play = async (candidate: Plan) => {
    const hasAll = culprits.every((culprit) => faultsOf(candidate).includes(culprit))
    // Every third play of a failing plan goes well.
    return hasAll && ++turn % 3 !== 0 ? ['applied once'] : ['another thing']
  }
  const result = await minimise(plan, {
    play: async (each) => (await play(each)).filter((name) => name === 'applied once'),
    tries: 3,
    finalTries: 9,
    say,
  })
  expect(result).toMatchObject({ checks: ['applied once'], before: faultsOf(plan).length, after: 2, failed: 6 })
  expect(result!.plan.faults).toEqual({ w1: [culprits[0]], w2: [], w3: [culprits[1]] })
})

test('another trouble than the one at hand does not count', async () => {
  const culprit: PlannedFault = plan.faults.w2![0]!
  let isFirst = true
  const play = async (candidate: Plan) => {
    if (!isFirst && !faultsOf(candidate).includes(culprit)) return ['all at rest']
    isFirst = false
    return ['applied once']
  }
  const result = await minimise(plan, { play, tries: 1, finalTries: 2, say })
  expect(result!.plan.faults).toEqual({ w1: [], w2: [culprit], w3: [] })
})

test('a plan that does not fail is left alone', async () => {
  expect(await minimise(plan, { play: async () => [], tries: 2, finalTries: 2, say })).toBeUndefined()
})
