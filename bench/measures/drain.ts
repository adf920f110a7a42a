import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { bestOf } from '../harness/report/best.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import type { System } from '../harness/system/child.ts'
import * as systems from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const { graphileLocalQueue, pgBoss, dbosPolls, raw } = systems
const families = [graphileLocalQueue, pgBoss, dbosPolls, raw]
// The peers that claim one job at a time get fewer of them, so that a round does not take minutes.
const contenders: readonly { readonly system: System; readonly jobs: number }[] = [
  ...[systems.pawl, ...graphileLocalQueue.tried, ...pgBoss.tried, ...raw.tried].map((system) => ({ system, jobs: 40_000 })),
  { system: systems.bullmq, jobs: 20_000 },
  { system: systems.bullmqPostgres, jobs: 5_000 },
  { system: systems.graphile, jobs: 5_000 },
  { system: systems.agenda, jobs: 3_000 },
  { system: dbosPolls.tried[0]!, jobs: 200 },
  { system: dbosPolls.tried[1]!, jobs: 2_000 },
]
const peers = [graphileLocalQueue, systems.graphile, pgBoss, systems.bullmq, systems.bullmqPostgres, systems.agenda, dbosPolls]

export const drain: Group = {
  name: 'drain',
  measures: ['drain', 'drain CPU'],
  async run(context) {
    const entries = contenders.map(({ system, jobs }) => ({
      name: system.name,
      unavailable: systems.whyNot(system, context.redis),
      run: async () => {
        const { rate, cpu } = await drainFresh(context, system, { jobs: sized(context, jobs, jobs / 5) })
        return { value: rate, cpu: cpu.server + cpu.client }
      },
    }))
    const { results, notes } = bestOf(await interleave(context, 'drain', entries), families)
    const common = { results, peers: peers.map(({ name }) => name), limits: [raw.name] }
    return [
      measure({
        ...common,
        name: 'drain',
        unit: 'jobs/s',
        better: 'higher',
        bars: [
          { atLeast: 1, times: graphileLocalQueue.name },
          { atLeast: 1.2, times: pgBoss.name },
          { atLeast: 0.8, times: raw.name },
        ],
        notes,
      }),
      measure({ ...common, name: 'drain CPU', metric: 'cpu', unit: 'µs per job, client and server', better: 'lower' }),
    ]
  },
}
