import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { complete, pawl, seed } from './samples.ts'

const connections = 32
const tx = 'tx items'
const batched = 'batched'
const contenders = [
  { name: tx, system: pawl, items: 4_000, handler: 'tx' },
  { name: batched, system: pawl, items: 20_000, handler: 'run' },
  { name: seed.name, system: seed, items: 2_000, handler: undefined },
] as const

/** Items of one batch that end at once. Pawl's have their jobs before; they are claimed and run by a worker with 32 handlers, and timed from the first handler. */
export const completion: Group = {
  name: 'completion',
  measures: ['completion tx', 'completion'],
  async run(context) {
    const results = await interleave(
      context,
      'completion',
      contenders.map(({ name, system, items, handler }) => ({
        name,
        run: async () => {
          const count = sized(context, items, items / 4)
          const { from, firstAt = from, to } = await complete(context, system, count, connections, handler)
          return { value: (count / (to - firstAt)) * 1_000 }
        },
      })),
    )
    const common = { unit: 'items/s', better: 'higher', results, limits: [seed.name] } as const
    return [
      measure({ ...common, name: 'completion tx', pawl: tx, bars: [{ atLeast: 3, times: seed.name }] }),
      measure({ ...common, name: 'completion', pawl: batched, bars: [{ atLeast: 40, times: seed.name }] }),
    ]
  },
}
