import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { bestOf } from '../harness/report/best.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import type { Handler } from '../harness/system/protocol.ts'
import * as systems from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const { graphileLocalQueue } = systems
const contenders: readonly { name: string; system: typeof systems.pawl; handler: Handler; jobs: number }[] = [
  { name: 'pawl', system: systems.pawl, handler: 'tx', jobs: 5_000 },
  { name: 'pawl shared', system: systems.pawl, handler: 'tx shared', jobs: 20_000 },
  { name: systems.graphile.name, system: systems.graphile, handler: 'tx', jobs: 5_000 },
  ...graphileLocalQueue.tried.map((system) => ({ name: system.name, system, handler: 'tx' as const, jobs: 5_000 })),
]

/** Each handler writes one row. Pawl's row and completion commit together; graphile's row and completion are two transactions. */
export const drainTx: Group = {
  name: 'drain tx',
  measures: ['drain tx', 'drain tx CPU', 'drain tx shared'],
  async run(context) {
    const entries = contenders.map(({ name, system, handler, jobs }) => ({
      name,
      run: async () => {
        const { rate, cpu } = await drainFresh(context, system, { handler, jobs: sized(context, jobs, jobs / 5) })
        return { value: rate, cpu: cpu.server + cpu.client }
      },
    }))
    const { results, notes } = bestOf(await interleave(context, 'drain tx', entries), [graphileLocalQueue])
    const peers = [systems.graphile.name, graphileLocalQueue.name]
    const common = { unit: 'jobs/s', better: 'higher', results, peers, notes } as const
    return [
      measure({ ...common, name: 'drain tx', bars: [{ atLeast: 1.5, times: systems.graphile.name }] }),
      measure({ name: 'drain tx CPU', metric: 'cpu', unit: 'µs per job, client and server', better: 'lower', results, peers }),
      measure({
        ...common,
        name: 'drain tx shared',
        pawl: 'pawl shared',
        bars: [{ atLeast: 3.5, times: systems.graphile.name }],
      }),
    ]
  },
}
