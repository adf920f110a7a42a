import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave } from '../../harness/rounds.ts'
import type { System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { rateThrough } from './through.ts'

const pawl: System = { name: 'pawl', module: 'events/pawl' }
const loop: System = { name: 'loop', module: 'events/loop' }

/** Every event adds one to the row of its key, of 1,000 keys. */
export const upsert: Group = {
  name: 'upsert',
  measures: ['upsert'],
  async run(context) {
    const events = sized(context, 50_000, 5_000)
    const results = await interleave(
      context,
      'upsert',
      [pawl, loop].map((system) => ({
        name: system.name,
        run: async () => ({ value: await rateThrough(context, system, 'upsert', events) }),
      })),
    )
    return [
      measure({
        name: 'upsert',
        unit: 'events/s',
        better: 'higher',
        results,
        limits: ['loop'],
        bars: [{ atLeast: 0.7, times: 'loop' }],
      }),
    ]
  },
}
