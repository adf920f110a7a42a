import { type Context, setupOf, sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave } from '../../harness/rounds.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Via } from '../../harness/system/protocol.ts'
import type { Group } from '../group.ts'

const connections = 32
const event: System = { name: 'pawl', module: 'events/append', variant: 'event' }
const without: System = { name: 'without', module: 'events/append' }
const ways: readonly { name: string; via: Via; note: string }[] = [
  { name: 'append', via: 'plain', note: 'one statement on both sides' },
  { name: 'append pipelined', via: 'pipelined', note: 'begin, insert, append and commit, sent without waiting' },
]

/** What an event costs the transaction that appends it, while 32 connections do nothing else. */
export const append: Group = {
  name: 'append',
  measures: ways.map(({ name }) => name),
  async run(context) {
    const taken = []
    for (const { name, via, note } of ways) {
      const results = await interleave(
        context,
        name,
        [event, without].map((system) => ({
          name: system.name,
          run: async () => ({ value: await msPerTransaction(context, system, via) }),
        })),
      )
      taken.push(
        measure({
          name,
          unit: 'ms per transaction',
          better: 'lower',
          results,
          limits: ['without'],
          bars: [{ atMost: 1.25, times: 'without' }],
          notes: [note],
        }),
      )
    }
    return taken
  },
}

function msPerTransaction(context: Context, system: System, via: Via): Promise<number> {
  const count = sized(context, 20_000, 3_000)
  return context.server.withDatabase(async (database) => {
    const child = new Child(system)
    try {
      await child.prepare({ ...setupOf(context, database), connections })
      // The first ones prepare the statements and warm both sides up.
      await child.oneByOne(count / 10, connections, via)
      return ((await child.oneByOne(count, connections, via)) * connections) / count
    } finally {
      await child.stop()
    }
  })
}
