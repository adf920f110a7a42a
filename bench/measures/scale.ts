import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const one = '1 process'
const steps = [
  { name: 'scale 2 processes', processes: 2, atLeast: 1.8 },
  { name: 'scale 4 processes', processes: 4, atLeast: 3.3 },
] as const

/** Handlers that wait 5 ms, 20 in each process: at most 4,000 a second and process. */
export const scale: Group = {
  name: 'scale',
  measures: steps.map(({ name }) => name),
  async run(context) {
    const results = await interleave(
      context,
      'scale',
      [{ name: one, processes: 1 }, ...steps].map(({ name, processes }) => ({
        name,
        run: async () => {
          const jobs = processes * sized(context, 10_000, 2_000)
          return { value: (await drainFresh(context, pawl, { jobs, processes, handler: 'wait' })).rate }
        },
      })),
      Math.min(context.rounds, 3),
    )
    return steps.map(({ name, atLeast }) =>
      measure({
        name,
        unit: 'jobs/s',
        better: 'higher',
        results,
        pawl: name,
        limits: [one],
        bars: [{ atLeast, times: one }],
      }),
    )
  },
}
