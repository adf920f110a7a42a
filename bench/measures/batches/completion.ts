import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { complete, completions, pawl, seed } from './samples.ts'

const connections = 32
/** Items in a flush: about what the settlers of the whole workers below reach. */
const flush = 800
const withRow = `${seed.name} with a row`
const contenders = [
  { name: 'tx', system: completions, task: 'tx', items: 8_000, more: [] },
  { name: withRow, system: seed, task: 'complete', items: 8_000, more: ['row'] },
  { name: 'settle', system: completions, task: 'settle', items: 64_000, more: [flush] },
  { name: seed.name, system: seed, task: 'complete', items: 8_000, more: [] },
  { name: 'worker tx', system: pawl, task: 'complete', items: 4_000, more: ['tx'] },
  { name: 'worker', system: pawl, task: 'complete', items: 20_000, more: ['run'] },
] as const

/**
 * Items of one batch that end at once. First our statements alone, beside the seed's: 32 connections, the same row of an effect or none on both
 * sides, jobs claimed before. Then whole workers with 32 handlers, which also claim, from the first handler to the end.
 */
export const completion: Group = {
  name: 'completion',
  measures: ['completion tx', 'completion', 'worker tx', 'worker'],
  async run(context) {
    const results = await interleave(
      context,
      'completion',
      contenders.map(({ name, system, task, items, more }) => ({
        name,
        run: async () => {
          const count = sized(context, items, items / 4)
          const { from, firstAt = from, to, flush: reached } = await complete(context, system, task, count, connections, ...more)
          return { value: (count / (to - firstAt)) * 1_000, ...(reached === undefined ? {} : { flush: reached }) }
        },
      })),
    )
    const common = { unit: 'items/s', better: 'higher', results } as const
    return [
      measure({ ...common, name: 'completion tx', pawl: 'tx', limits: [withRow], bars: [{ atLeast: 3, times: withRow }] }),
      measure({
        ...common,
        name: 'completion',
        pawl: 'settle',
        limits: [seed.name],
        bars: [{ atLeast: 40, times: seed.name }],
        notes: [`${flush} items in a flush`],
      }),
      measure({ ...common, name: 'worker tx', pawl: 'worker tx', limits: [seed.name] }),
      measure({
        ...common,
        name: 'worker',
        pawl: 'worker',
        limits: [seed.name],
        notes: [`${shown(results.value('worker', 'flush'))} items in a flush`],
      }),
    ]
  },
}
