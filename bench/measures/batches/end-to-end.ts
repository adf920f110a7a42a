import { type Context, sized } from '../../harness/context.ts'
import { handlersPerProcess } from '../../harness/drain.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave, type Results } from '../../harness/rounds.ts'
import type { System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { byHand, flows, pawl, plainJobs, through } from './samples.ts'

const few = 784
const many = 10_000
const contenders: readonly { readonly system: System; readonly most: number }[] = [
  { system: pawl, most: many },
  { system: plainJobs, most: many },
  { system: flows, most: many },
  // Its counter is one row, so a round would take half a minute.
  { system: byHand, most: 2_000 },
]
const peers = [flows.name, byHand.name]

/** Items that do nothing, from the call that starts them to the end of the last, in a process with 20 handlers that was idle before. */
export const endToEnd: Group = {
  name: 'end to end',
  measures: ['784 items', '10,000 items'],
  async run(context) {
    const [small, large] = [await take(context, few), await take(context, sized(context, many, 2_000))]
    const perItem = ((small.value('pawl') ?? 0) - (small.value(plainJobs.name) ?? 0)) / few
    return [
      measure({
        name: '784 items',
        unit: 'ms',
        better: 'lower',
        results: small,
        peers,
        limits: [plainJobs.name],
        notes: [
          `${shown(perItem * 1_000)} µs more for each item than a plain job`,
          `start ${shown(small.value('pawl', 'start'))} ms, and onEnd is called ${shown(small.value('pawl', 'onEnd'))} ms after the end`,
        ],
      }),
      measure({
        name: '10,000 items',
        unit: 'items/s',
        better: 'higher',
        results: large,
        metric: 'rate',
        peers,
        limits: [plainJobs.name],
        bars: [{ atLeast: 0.5, times: plainJobs.name }],
        notes: [
          `start ${shown(large.value('pawl', 'start'))} ms; the enqueue of the jobs ${shown(large.value(plainJobs.name, 'start'))} ms`,
        ],
      }),
    ]
  },
}

function take(context: Context, count: number): Promise<Results> {
  return interleave(
    context,
    `${count} items`,
    contenders.map(({ system, most }) => ({
      name: system.name,
      unavailable: system === flows && typeof context.redis === 'string' ? context.redis : undefined,
      run: async () => {
        const items = Math.min(count, most)
        const { from, startedAt, to, calledAt = to } = await through(context, system, items, handlersPerProcess)
        return { value: to - from, rate: (items / (to - from)) * 1_000, start: startedAt - from, onEnd: calledAt - to }
      },
    })),
  )
}
