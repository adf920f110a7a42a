import { type Context, setupOf, sized } from '../harness/context.ts'
import { handlersPerProcess } from '../harness/drain.ts'
import { now, pause } from '../harness/machine/clock.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { Child } from '../harness/system/child.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const idleMs = 1_500

/** kill -9 of the process that runs a job, until another process runs it. */
export const kill: Group = {
  name: 'kill',
  measures: ['kill'],
  async run(context) {
    const rounds = sized(context, Math.max(5, context.rounds), 2)
    const results = await interleave(
      context,
      'kill',
      [{ name: 'pawl', run: async () => ({ value: (await rescueMs(context)) / 1_000 }) }],
      rounds,
    )
    return [
      measure({
        name: 'kill',
        unit: 's',
        better: 'lower',
        results,
        bars: [{ atMost: 2 }],
      }),
    ]
  },
}

function rescueMs(context: Context): Promise<number> {
  return context.server.withDatabase(async (database) => {
    const [victim, other] = [new Child(pawl), new Child(pawl)]
    try {
      for (const child of [victim, other]) await child.prepare(setupOf(context, database))
      const runs = started(victim)
      await victim.work({ handler: 'hang', concurrency: handlersPerProcess }, Number.POSITIVE_INFINITY)
      await other.enqueue(1, 'plain')
      await runs
      const runsAgain = started(other)
      await other.work({ handler: 'hang', concurrency: handlersPerProcess }, Number.POSITIVE_INFINITY)
      // A random moment, since whoever watches may do so at intervals.
      await pause(idleMs + Math.random() * 1_000)
      const killedAt = now()
      victim.kill9()
      return (await runsAgain) - killedAt
    } finally {
      other.kill9()
      victim.kill9()
    }
  })
}

function started(child: Child): Promise<number> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('the job did not run within 90 s')), 90_000)
    child.onStamp = (_, at) => {
      clearTimeout(timer)
      resolve(at)
    }
  })
}
