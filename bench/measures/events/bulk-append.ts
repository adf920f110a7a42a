import { setupOf, sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave } from '../../harness/rounds.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'

const pawl: System = { name: 'pawl', module: 'events/pawl' }
const copy: System = { name: 'COPY', module: 'events/copy' }
const callSize = 1_000
const inCalls = (name: string) => `${name} in calls of 1,000`

/** 20,000 events in one transaction: one call of append beside one COPY. And both in calls of 1,000, a commit each. */
export const bulkAppend: Group = {
  name: 'bulk append',
  measures: ['bulk append'],
  async run(context) {
    const events = sized(context, 20_000, 5_000)
    const entries = [pawl, copy].flatMap((system) => [
      { name: system.name, system, size: events },
      { name: inCalls(system.name), system, size: callSize },
    ])
    const results = await interleave(
      context,
      'bulk append',
      entries.map(({ name, system, size }) => ({
        name,
        run: () =>
          context.server.withDatabase(async (database) => {
            const child = new Child(system)
            try {
              await child.prepare(setupOf(context, database))
              return { value: events / ((await child.bulk(events, size)) / 1_000) }
            } finally {
              await child.stop()
            }
          }),
      })),
    )
    return [
      measure({
        name: 'bulk append',
        unit: 'events/s',
        better: 'higher',
        results,
        limits: ['COPY', inCalls('COPY')],
        bars: [{ atLeast: 0.5, times: 'COPY' }],
        notes: [`${inCalls('pawl')}: ${shown(results.value(inCalls('pawl')))} events/s`],
      }),
    ]
  },
}
