import { type Context, sized } from '../harness/context.ts'
import { drainFresh, drainOnce } from '../harness/drain.ts'
import { measure } from '../harness/report/measure.ts'
import { interleave } from '../harness/rounds.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const tenths = 10

/** 500,000 jobs through one table that nobody vacuums by hand; its last tenth beside a fresh table. */
export const sustained: Group = {
  name: 'sustained',
  measures: ['sustained'],
  async run(context) {
    const jobs = sized(context, 500_000, 20_000) / tenths
    const results = await interleave(
      context,
      'sustained',
      [{ name: 'pawl', run: () => lastTenth(context, jobs) }],
      Math.min(context.rounds, 3),
    )
    const fresh = { value: (contender: string) => results.value('pawl', contender === 'pawl' ? 'value' : 'fresh') }
    return [
      measure({
        name: 'sustained',
        unit: 'jobs/s',
        better: 'higher',
        results: {
          ...results,
          ...fresh,
          samples: (contender) => results.samples('pawl', contender === 'pawl' ? 'value' : 'fresh'),
        },
        limits: ['fresh table'],
        bars: [{ atLeast: 0.8, times: 'fresh table' }],
        notes: [`first tenth: ${results.value('pawl', 'first')?.toLocaleString('en')} jobs/s`],
      }),
    ]
  },
}

/** The fresh table is drained right before and right after the last tenth, and its rate is the mean of both. */
function lastTenth(context: Context, jobs: number) {
  return context.server.withDatabase(async (database) => {
    const used = async () => (await drainOnce(context, pawl, database, { jobs, isVacuumed: false })).rate
    const fresh = async () => (await drainFresh(context, pawl, { jobs, isVacuumed: false })).rate
    const first = await used()
    for (let tenth = 2; tenth < tenths; tenth++) await used()
    const before = await fresh()
    const value = await used()
    return { value, fresh: (before + (await fresh())) / 2, first }
  })
}
