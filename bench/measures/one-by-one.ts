import { Child, type System } from '../harness/child.ts'
import { type Context, setupOf, sized } from '../harness/context.ts'
import { handlersPerProcess } from '../harness/drain.ts'
import { measure } from '../harness/measure.ts'
import { interleave } from '../harness/rounds.ts'
import * as systems from '../harness/systems.ts'
import type { Group } from './group.ts'

const inFlight = 24
const contenders = [systems.pawl, systems.pgBoss, systems.graphile, systems.agenda, systems.dbos, systems.bullmq]

/** One job a call, 24 calls in flight, while a worker in another process has more slow jobs than it can run. */
export const oneByOne: Group = {
  name: 'enqueue one by one',
  measures: ['enqueue one by one'],
  async run(context) {
    const results = await interleave(
      context,
      'enqueue one by one',
      contenders.map((system) => ({
        name: system.name,
        unavailable: systems.whyNot(system, context.redis),
        run: async () => ({ value: await rate(context, system) }),
      })),
    )
    return [
      measure({
        name: 'enqueue one by one',
        unit: 'jobs/s',
        better: 'higher',
        results,
        peers: contenders.slice(1).map(({ name }) => name),
        bars: [{ atLeast: 2, times: systems.pgBoss.name }],
      }),
    ]
  },
}

function rate(context: Context, system: System): Promise<number> {
  const jobs = sized(context, 5_000, 1_000)
  const backlog = sized(context, 2_000, 500)
  return context.server.withDatabase(async (database) => {
    const children = [new Child(system), new Child(system)] as const
    const [worker, enqueuer] = children
    try {
      for (const child of children) await child.prepare(setupOf(context, database))
      await worker.fill(backlog)
      await database.query('vacuum analyze')
      const isBusy = new Promise<void>((resolve) => {
        worker.onProgress = ({ handled }) => {
          if (handled >= handlersPerProcess) resolve()
        }
      })
      await worker.work({ handler: 'slow', concurrency: handlersPerProcess }, Number.POSITIVE_INFINITY)
      await isBusy
      return jobs / ((await enqueuer.oneByOne(jobs, inFlight)) / 1_000)
    } finally {
      await Promise.all(children.map((child) => child.stop()))
    }
  })
}
