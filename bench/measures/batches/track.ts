import { type Context, sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave, type Sample } from '../../harness/rounds.ts'
import { withChild } from '../../harness/system/with-child.ts'
import type { Group } from '../group.ts'
import { pawl } from './samples.ts'

const few = 10
const small = `${few} items`

/** The pages of a cancel that lets the next batch of the track run, when all items but the last have ended. Both batches are in one database, so that its indexes are as high for both. */
export const track: Group = {
  name: 'track',
  measures: ['free the track'],
  async run(context) {
    const many = sized(context, 100_000, 10_000)
    const results = await interleave(
      context,
      'track',
      [
        { name: 'pawl', run: () => pagesOf(context, many) },
        { name: small, run: () => pagesOf(context, few) },
      ],
      Math.min(3, context.rounds),
    )
    return [
      measure({
        name: 'free the track',
        unit: 'pages',
        better: 'lower',
        results,
        limits: [small],
        bars: [{ atMost: 1.05, times: small }],
      }),
    ]
  },
}

function pagesOf(context: Context, items: number): Promise<Sample> {
  return context.server.withDatabase(
    (database) =>
      withChild(context, database, pawl, async (child) => {
        const occupied = new Map<number, string>()
        for (const count of [sized(context, 100_000, 10_000), few]) occupied.set(count, await child.call('run', 'occupy', count))
        for (const id of occupied.values()) await child.call('run', 'settle', id)
        await database.query('vacuum analyze')
        // The first call of a connection reads the catalog.
        await child.call('run', 'cancel', await child.call('run', 'occupy', 1))
        const before = await database.counted()
        await child.call('run', 'cancel', occupied.get(items))
        const after = await database.counted()
        return { value: after.pages - before.pages }
      }),
    true,
  )
}
