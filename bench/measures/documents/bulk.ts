import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave, type Sample } from '../../harness/rounds.ts'
import { withChild } from '../../harness/system/with-child.ts'
import type { Group } from '../group.ts'
import { copy, pawl } from './systems.ts'

/** New documents with two references each, in one call. */
export const bulk: Group = {
  name: 'bulk',
  measures: ['post 10,000'],
  async run(context) {
    const count = sized(context, 10_000, 2_000)
    const contenders = [
      { system: pawl, args: ['bulk', count] },
      { system: copy, args: ['copy', 'Offering', count] },
    ]
    const results = await interleave(
      context,
      'bulk',
      contenders.map(({ system, args }) => ({
        name: system.name,
        run: () =>
          context.server.withDatabase((database) =>
            withChild(context, database, system, (child) => child.call<Sample>('run', ...args)),
          ),
      })),
    )
    return [
      measure({
        name: 'post 10,000',
        unit: 'ms',
        better: 'lower',
        results,
        limits: [copy.name],
        bars: [{ atMost: 15, times: copy.name }],
      }),
    ]
  },
}
