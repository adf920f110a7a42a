import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave, takenOnce } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { csvFile } from './files.ts'
import { copy, pawl, runTask } from './samples.ts'
import { changeEvery, takeSubmissions } from './submissions.ts'

const growthMax = 1.25

/** The first submission of ten times as many rows. */
export const takeLarge = takenOnce((context) => {
  const file = csvFile({ rows: sized(context, 150_000, 10_000), edition: 1, changeEvery })
  return interleave(
    context,
    '150,000 rows',
    [
      { name: 'pawl', system: pawl, task: 'submit' },
      { name: copy.name, system: copy, task: 'copy' },
    ].map(({ name, system, task }) => ({
      name,
      run: () => context.server.withDatabase((database) => runTask(context, database, system, task, file)),
    })),
    Math.min(3, context.rounds),
  )
})

export const size: Group = {
  name: '150,000 rows',
  measures: ['150,000 rows'],
  async run(context) {
    const small = await takeSubmissions(context)
    const results = await takeLarge(context)
    const [few, many] = [
      ratio(small.value('pawl', 'first'), small.value(copy.name, 'first')),
      ratio(results.value('pawl'), results.value(copy.name)),
    ]
    const isMet = few !== null && many !== null && many <= growthMax * few
    return [
      measure({
        name: '150,000 rows',
        unit: 'ms',
        better: 'lower',
        results,
        limits: [copy.name],
        bars: [{ says: `ratio to COPY <= ${growthMax} x that of first`, isMet }],
        notes: [
          `the ratio of first is ${shown(few)}`,
          `upload ${shown(results.value('pawl', 'upload'))} ms, submit to commit ${shown(results.value('pawl', 'apply'))} ms`,
        ],
      }),
    ]
  },
}

function ratio(one: number | null, other: number | null): number | null {
  return one === null || other === null || other === 0 ? null : one / other
}
