import type { System } from '../harness/child.ts'
import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { measure } from '../harness/measure.ts'
import { interleave } from '../harness/rounds.ts'
import * as systems from '../harness/systems.ts'
import type { Group } from './group.ts'

// The peers that claim one job at a time get fewer of them; their rate does not depend on the number.
const peers: readonly { readonly system: System; readonly jobs: number }[] = [
  { system: systems.graphileLocalQueue, jobs: 20_000 },
  { system: systems.graphile, jobs: 5_000 },
  { system: systems.pgBoss, jobs: 20_000 },
  { system: systems.bullmq, jobs: 20_000 },
  { system: systems.agenda, jobs: 3_000 },
  { system: systems.dbos, jobs: 3_000 },
]
const limits = [systems.raw, systems.raw500].map((system) => ({ system, jobs: 20_000 }))

export const drain: Group = {
  name: 'drain',
  measures: ['drain'],
  async run(context) {
    const entries = [{ system: systems.pawl, jobs: 20_000 }, ...peers, ...limits].map(({ system, jobs }) => ({
      name: system.name,
      unavailable: systems.whyNot(system, context.redis),
      run: async () => ({ value: (await drainFresh(context, system, { jobs: sized(context, jobs, jobs / 5) })).rate }),
    }))
    const results = await interleave(context, 'drain', entries)
    return [
      measure({
        name: 'drain',
        unit: 'jobs/s',
        better: 'higher',
        results,
        peers: peers.map(({ system }) => system.name),
        limits: limits.map(({ system }) => system.name),
        bars: [
          { atLeast: 1.5, times: systems.graphileLocalQueue.name },
          { atLeast: 3, times: systems.bullmq.name },
          { atLeast: 0.8, times: systems.raw.name },
        ],
      }),
    ]
  },
}
