import { sized } from '../harness/context.ts'
import { drainFresh } from '../harness/drain.ts'
import { measure } from '../harness/measure.ts'
import type { Handler } from '../harness/protocol.ts'
import { interleave } from '../harness/rounds.ts'
import * as systems from '../harness/systems.ts'
import type { Group } from './group.ts'

const contenders: readonly { name: string; system: typeof systems.pawl; handler: Handler; jobs: number }[] = [
  { name: 'pawl', system: systems.pawl, handler: 'tx', jobs: 5_000 },
  { name: 'pawl shared', system: systems.pawl, handler: 'tx shared', jobs: 20_000 },
  { name: 'graphile plain', system: systems.graphile, handler: 'tx', jobs: 5_000 },
  { name: 'graphile localQueue', system: systems.graphileLocalQueue, handler: 'tx', jobs: 5_000 },
]

/** Each handler writes one row. Pawl's row and completion commit together; graphile's row and completion are two transactions. */
export const drainTx: Group = {
  name: 'drain tx',
  measures: ['drain tx', 'drain tx shared'],
  async run(context) {
    const entries = contenders.map(({ name, system, handler, jobs }) => ({
      name,
      run: async () => ({ value: (await drainFresh(context, system, { handler, jobs: sized(context, jobs, jobs / 5) })).rate }),
    }))
    const results = await interleave(context, 'drain tx', entries)
    const common = { unit: 'jobs/s', better: 'higher', results, peers: ['graphile plain', 'graphile localQueue'] } as const
    return [
      measure({ name: 'drain tx', ...common, bars: [{ atLeast: 1.7, times: 'graphile plain' }] }),
      measure({ name: 'drain tx shared', ...common, pawl: 'pawl shared', bars: [{ atLeast: 3.5, times: 'graphile plain' }] }),
    ]
  },
}
