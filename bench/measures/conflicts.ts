import type { System } from '../harness/child.ts'
import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { measure } from '../harness/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { pawl } from '../harness/systems.ts'
import type { Group } from './group.ts'

const orQuery: System = { name: 'seed 003 OR query', module: 'seed-003', variant: 'or' }
const splitQuery: System = { name: 'seed 003 split query', module: 'seed-003', variant: 'split' }
const processes = 4

/** Claims that lost their job to another process, and settles that were refused, per 1,000 jobs. */
export const conflicts: Group = {
  name: 'conflicts',
  measures: ['conflicts'],
  async run(context) {
    const contenders = [
      { system: pawl, jobs: sized(context, 40_000, 8_000) },
      { system: orQuery, jobs: sized(context, 4_000, 800) },
      { system: splitQuery, jobs: sized(context, 4_000, 800) },
    ]
    const entries = contenders.map(({ system, jobs }) => ({
      name: system.name,
      run: async () => {
        const { metrics } = await drainFresh(context, system, { jobs, processes })
        const lost = metrics.reduce((sum, counts) => sum + (counts.conflicts ?? 0) + (counts.refused ?? 0), 0)
        return { value: (1_000 * lost) / jobs }
      },
    }))
    const results = await interleave(context, 'conflicts', entries, Math.min(context.rounds, 3))
    return [
      measure({
        name: 'conflicts',
        unit: 'per 1,000 jobs',
        better: 'lower',
        results,
        peers: [orQuery.name, splitQuery.name],
        bars: [{ atMost: 0.1, times: orQuery.name }],
      }),
    ]
  },
}
