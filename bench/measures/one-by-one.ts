import { type Context, setupOf, sized } from '../harness/context.ts'
import { handlersPerProcess } from '../harness/drain.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { Child, type System } from '../harness/system/child.ts'
import * as systems from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const inFlight = 24
const pgBoss: System = { ...systems.pgBoss.tried[1]!, name: systems.pgBoss.name }
const contenders = [systems.pawl, pgBoss, systems.graphile, systems.agenda, systems.dbos, systems.bullmqPostgres, systems.bullmq]
const beside = [
  { name: 'enqueue one by one', isBusy: true },
  { name: 'enqueue beside an idle worker', isBusy: false },
] as const

/** One job a call, 24 calls in flight, while a worker in another process has more slow jobs than it can run, or no others. */
export const oneByOne: Group = {
  name: 'enqueue one by one',
  measures: beside.map(({ name }) => name),
  async run(context) {
    const taken = []
    for (const { name, isBusy } of beside) {
      const results = await interleave(
        context,
        name,
        contenders.map((system) => ({
          name: system.name,
          unavailable: systems.whyNot(system, context.redis),
          run: async () => ({ value: await rate(context, system, isBusy) }),
        })),
      )
      const peers = contenders.slice(1).map((system) => system.name)
      const bars = isBusy ? [{ atLeast: 2, times: pgBoss.name }] : []
      taken.push(measure({ name, unit: 'jobs/s', better: 'higher', results, peers, bars }))
    }
    return taken
  },
}

function rate(context: Context, system: System, isBusy: boolean): Promise<number> {
  const jobs = sized(context, 5_000, 1_000)
  return context.server.withDatabase(async (database) => {
    const children = [new Child(system), new Child(system)] as const
    const [worker, enqueuer] = children
    try {
      for (const child of children) await child.prepare(setupOf(context, database))
      if (isBusy) await worker.fill(sized(context, 2_000, 500))
      await database.query('vacuum analyze')
      const hasBegun = new Promise<void>((resolve) => {
        worker.onProgress = ({ handled }) => {
          if (!isBusy || handled >= handlersPerProcess) resolve()
        }
      })
      await worker.work({ handler: isBusy ? 'slow' : 'noop', concurrency: handlersPerProcess }, Number.POSITIVE_INFINITY)
      await hasBegun
      return jobs / ((await enqueuer.oneByOne(jobs, inFlight)) / 1_000)
    } finally {
      await Promise.all(children.map((child) => child.stop()))
    }
  })
}
