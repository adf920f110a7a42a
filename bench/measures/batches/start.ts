import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave, type Sample } from '../../harness/rounds.ts'
import { withChild } from '../../harness/system/with-child.ts'
import type { Group } from '../group.ts'
import { copy, pawl } from './samples.ts'

/** A start of 100,000 items, and until all of them have jobs, beside COPY into the same table with its indexes. */
export const start: Group = {
  name: 'start',
  measures: ['start 100,000', 'fed 100,000'],
  async run(context) {
    const items = sized(context, 100_000, 10_000)
    const results = await interleave(context, 'start', [
      {
        name: pawl.name,
        run: () =>
          context.server.withDatabase((database) =>
            withChild(context, database, pawl, (child) => child.call<Sample>('run', 'feed', items)),
          ),
      },
      {
        name: copy.name,
        run: () =>
          context.server.withDatabase((database) =>
            withChild(context, database, copy, async (child) => {
              const ms = await child.bulk(items, items)
              return { start: ms, fed: ms }
            }),
          ),
      },
    ])
    const common = { unit: 'ms', better: 'lower', results, limits: [copy.name] } as const
    return [
      measure({ ...common, name: 'start 100,000', metric: 'start', bars: [{ atMost: 2, times: copy.name }] }),
      measure({ ...common, name: 'fed 100,000', metric: 'fed', bars: [{ atMost: 4, times: copy.name }] }),
    ]
  },
}
