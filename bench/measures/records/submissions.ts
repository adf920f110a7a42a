import { type Context, sized } from '../../harness/context.ts'
import { type Measure, measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave, type Results, type Sample, takenOnce } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { csvFile } from './files.ts'
import { copy, copyCsv, copyJson, runTask, submitFiles } from './samples.ts'

export const rowsOf = (context: Context) => sized(context, 15_000, 2_000)
/** One row in five is changed. */
export const changeEvery = 5

const steps = [
  { name: 'first', edition: 1, atMost: 3.5 },
  { name: 'second', edition: 2, atMost: 2.5 },
  { name: 'replay', edition: 2, atMost: 2 },
] as const

/** One after the other in one database, each in a process of its own: a first submission, one with a fifth of the rows changed, the same again. */
export const takeSubmissions = takenOnce((context) =>
  interleave(context, 'submissions', [
    { name: 'pawl', run: () => submitAll(context) },
    ...[copy, copyJson, copyCsv].map((system) => ({ name: system.name, run: () => copyOnce(context, system) })),
  ]),
)

export const submissions: Group = {
  name: 'submissions',
  measures: steps.map(({ name }) => name),
  async run(context) {
    const results = await takeSubmissions(context)
    return steps.map(({ name, atMost }) => of(results, name, atMost))
  },
}

function of(results: Results, metric: string, atMost: number): Measure {
  const part = (name: string) => shown(results.value('pawl', `${metric} ${name}`))
  return measure({
    name: metric,
    unit: 'ms',
    better: 'lower',
    results,
    metric,
    limits: [copy.name, copyJson.name, copyCsv.name],
    bars: [{ atMost, times: copy.name }],
    notes: [`upload ${part('upload')} ms, preview ${part('preview')} ms, submit to commit ${part('apply')} ms`],
  })
}

function submitAll(context: Context): Promise<Sample> {
  const rows = rowsOf(context)
  return context.server.withDatabase(async (database) => {
    const sample: Record<string, number> = {}
    const changes = { first: rows, second: rows / changeEvery, replay: 0 }
    for (const { name, edition } of steps) {
      const file = csvFile({ rows, edition, changeEvery })
      const taken = await submitFiles(context, database, [file])
      if (taken.changes !== changes[name]) throw new Error(`${name} made ${taken.changes} changes instead of ${changes[name]}`)
      for (const [part, value] of Object.entries(taken)) sample[part === 'value' ? name : `${name} ${part}`] = value
    }
    return sample
  })
}

/** It has one time, which everything is measured by. */
function copyOnce(context: Context, system: Parameters<typeof runTask>[2]): Promise<Sample> {
  const file = csvFile({ rows: rowsOf(context), edition: 1, changeEvery })
  return context.server.withDatabase(async (database) => {
    const { value } = await runTask(context, database, system, 'copy', file)
    return { first: value!, second: value!, replay: value! }
  })
}
