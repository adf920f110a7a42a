import { setupOf, sized } from '../harness/context.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { Child, type System } from '../harness/system/child.ts'
import * as systems from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const copy: System = { name: 'COPY', module: 'copy' }
const pgBoss: System = { ...systems.pgBoss.tried[1]!, name: systems.pgBoss.name }
const callSize = 1_000

/** 20,000 jobs in calls of 1,000, a commit each. COPY takes all of them in one command and one commit, which is the most there is. */
export const bulk: Group = {
  name: 'bulk enqueue',
  measures: ['bulk enqueue'],
  async run(context) {
    const jobs = sized(context, 20_000, 5_000)
    const all = [systems.pawl, systems.graphile, pgBoss, systems.bullmqPostgres, systems.bullmq].map((system) => ({
      name: system.name,
      system,
      size: callSize,
    }))
    const limits = [
      { name: 'COPY', system: copy, size: jobs },
      { name: 'COPY in calls of 1,000', system: copy, size: callSize },
    ]
    const entries = [...all, ...limits].map(({ name, system, size }) => ({
      name: name === 'graphile plain' ? 'graphile addJobs' : name,
      unavailable: systems.whyNot(system, context.redis),
      run: () =>
        context.server.withDatabase(async (database) => {
          const child = new Child(system)
          try {
            await child.prepare(setupOf(context, database))
            return { value: jobs / ((await child.bulk(jobs, size)) / 1_000) }
          } finally {
            await child.stop()
          }
        }),
    }))
    const results = await interleave(context, 'bulk enqueue', entries)
    return [
      measure({
        name: 'bulk enqueue',
        unit: 'jobs/s',
        better: 'higher',
        results,
        peers: ['graphile addJobs', pgBoss.name, systems.bullmqPostgres.name, systems.bullmq.name],
        limits: limits.map(({ name }) => name),
        bars: [
          { atLeast: 2.5, times: 'graphile addJobs' },
          { atLeast: 0.75, times: 'COPY' },
        ],
      }),
    ]
  },
}
