import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave } from '../../harness/rounds.ts'
import type { System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { rateThrough } from './through.ts'

const pawl: System = { name: 'pawl', module: 'events/pawl' }
const emmett: System = { name: 'Emmett', module: 'events/emmett' }
const pgoutput: System = { name: 'pgoutput', module: 'events/pgoutput' }

/** Events that have no position yet are given one and handed to a projection that does nothing. */
export const noOp: Group = {
  name: 'no-op',
  measures: ['no-op'],
  async run(context) {
    const many = sized(context, 100_000, 10_000)
    // It is so much slower that fewer tell as much.
    const few = sized(context, 10_000, 2_000)
    const results = await interleave(
      context,
      'no-op',
      [
        { system: pawl, events: many },
        { system: emmett, events: few },
        { system: pgoutput, events: many },
      ].map(({ system, events }) => ({
        name: system.name,
        run: async () => ({ value: await rateThrough(context, system, 'noop', events) }),
      })),
    )
    return [
      measure({
        name: 'no-op',
        unit: 'events/s',
        better: 'higher',
        results,
        peers: ['Emmett'],
        limits: ['pgoutput'],
        bars: [
          { atLeast: 0.6, times: 'pgoutput' },
          { atLeast: 2, times: 'Emmett' },
        ],
      }),
    ]
  },
}
