import { type Context, setupOf, sized } from '../../harness/context.ts'
import { now, pause } from '../../harness/machine/clock.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave } from '../../harness/rounds.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { deliverOnce, deliveryOf } from './delivery.ts'

const pawl: System = { name: 'pawl', module: 'events/pawl' }
const idleMs = 1_500

/** kill -9 of the process that holds a projection, until another process handles the next event. */
export const failover: Group = {
  name: 'failover',
  measures: ['failover'],
  async run(context) {
    const rounds = sized(context, Math.max(5, context.rounds), 2)
    const results = await interleave(
      context,
      'failover',
      [{ name: 'pawl', run: async () => ({ value: (await takeOverMs(context)) / 1_000 }) }],
      rounds,
    )
    return [measure({ name: 'failover', unit: 's', better: 'lower', results, bars: [{ atMost: 3 }] })]
  },
}

function takeOverMs(context: Context): Promise<number> {
  return context.server.withDatabase(async (database) => {
    const [victim, standby, writer] = [new Child(pawl), new Child(pawl), new Child(pawl)]
    try {
      for (const child of [victim, standby, writer]) await child.prepare(setupOf(context, database))
      await victim.work({ handler: 'stamp', concurrency: 1 }, Number.POSITIVE_INFINITY)
      await deliverOnce(victim, writer, 1)
      await standby.work({ handler: 'stamp', concurrency: 1 }, Number.POSITIVE_INFINITY)
      // A random moment, since whoever watches may do so at intervals.
      await pause(idleMs + Math.random() * 1_000)
      const takenOver = deliveryOf(standby, 2)
      const killedAt = now()
      victim.kill9()
      await writer.enqueue(2, 'tx')
      return (await takenOver) - killedAt
    } finally {
      for (const child of [victim, standby, writer]) child.kill9()
    }
  })
}
