import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const splitMax = 0.2

/** Long enough that the start of the second process does not count. */
export const drainTwo: Group = {
  name: 'drain 2 processes',
  measures: ['drain 2 processes'],
  async run(context) {
    const jobs = sized(context, 100_000, 10_000)
    const results = await interleave(
      context,
      'drain 2 processes',
      [
        { name: 'pawl', run: async () => twoProcesses(jobs) },
        { name: 'one process', run: async () => ({ value: (await drainFresh(context, pawl, { jobs })).rate }) },
      ],
      Math.min(context.rounds, 3),
    )
    const split = results.value('pawl', 'split')
    return [
      measure({
        name: 'drain 2 processes',
        unit: 'jobs/s',
        better: 'higher',
        results,
        limits: ['one process'],
        bars: [
          { atLeast: 1, times: 'one process' },
          { says: 'split within 20 %', isMet: split !== null && split <= splitMax },
        ],
        notes: split === null ? [] : [`split: the busier process ran ${(100 * split).toFixed(0)} % more than its half`],
      }),
    ]

    async function twoProcesses(count: number) {
      const { rate, shares } = await drainFresh(context, pawl, { jobs: count, processes: 2 })
      return { value: rate, split: Math.max(...shares) * 2 - 1 }
    }
  },
}
