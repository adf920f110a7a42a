import { type Context, setupOf, sized } from '../harness/context.ts'
import { handlersPerProcess } from '../harness/drain.ts'
import { measure } from '../harness/report/measure.ts'
import { median } from '../harness/report/stats.ts'
import { interleave } from '../harness/rounds.ts'
import { Child } from '../harness/system/child.ts'
import type { Progress } from '../harness/system/protocol.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const growthMax = 1.25
const megabyte = 1_048_576

/** The memory of a worker does not follow the length of its queue: RSS above start while a million jobs wait, early and late. */
export const memory: Group = {
  name: 'memory',
  measures: ['memory'],
  async run(context) {
    const results = await interleave(
      context,
      'memory',
      [{ name: 'pawl', run: () => memoryOf(context, sized(context, 1_000_000, 40_000)) }],
      1,
    )
    const growth = results.value('pawl', 'growth')
    return [
      measure({
        name: 'memory',
        unit: 'MB',
        better: 'lower',
        results,
        bars: [{ says: `flat: RSS at 90 % <= ${growthMax} x of 10 %`, isMet: growth !== null && growth <= growthMax }],
        notes: [
          `RSS ${results.value('pawl', 'start')} MB at start, ${results.value('pawl', 'early')} MB at 10 % of the jobs, ${results.value('pawl', 'late')} MB at 90 %`,
        ],
      }),
    ]
  },
}

function memoryOf(context: Context, jobs: number) {
  return context.server.withDatabase(async (database) => {
    const [filler, worker] = [new Child(pawl), new Child(pawl)]
    try {
      await filler.prepare(setupOf(context, database))
      await filler.fill(jobs)
      await worker.prepare(setupOf(context, database))
      const start = await worker.rss()
      const seen = await readings(worker, jobs)
      const early = around(seen, 0.1 * jobs)
      const late = around(seen, 0.9 * jobs)
      return {
        value: (late - start) / megabyte,
        start: start / megabyte,
        early: early / megabyte,
        late: late / megabyte,
        growth: late / early,
      }
    } finally {
      await Promise.all([filler.stop(), worker.stop()])
    }
  })
}

async function readings(worker: Child, jobs: number): Promise<Progress[]> {
  const seen: Progress[] = []
  const allStarted = new Promise<void>((resolve, reject) => {
    worker.onEnd = reject
    worker.onProgress = (progress) => {
      seen.push(progress)
      if (progress.handled >= jobs) resolve()
    }
  })
  await worker.work({ handler: 'noop', concurrency: handlersPerProcess, countsMemory: true }, jobs)
  await allStarted
  return seen
}

/** The median of a twentieth of the run on both sides, since garbage collection makes every single reading a matter of luck. */
function around(seen: readonly Progress[], handled: number): number {
  const width = 0.05 * Math.max(...seen.map((progress) => progress.handled))
  return median(seen.filter((progress) => Math.abs(progress.handled - handled) <= width).flatMap(({ rss }) => rss ?? []))
}
