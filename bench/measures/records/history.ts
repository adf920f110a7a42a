import type { Context } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave, type Sample, takenOnce } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { csvFile } from './files.ts'
import { array, pawl, pick, plain, runTask, submitFiles } from './samples.ts'
import { changeEvery, rowsOf, takeSubmissions } from './submissions.ts'

const editions = 10
/** In the middle of the history. */
const asOf = '3'

/** Ten submissions that change every row, and reads of what they leave. */
const takeHistory = takenOnce((context) =>
  interleave(
    context,
    'ten versions',
    [
      { name: 'pawl', run: () => pawlHistory(context) },
      { name: array.name, run: () => arrayHistory(context) },
      { name: plain.name, run: () => plainReads(context) },
    ],
    Math.min(3, context.rounds),
  ),
)

const wholeFile = (context: Context, edition: number) => csvFile({ rows: rowsOf(context), edition, changeEvery: 1 })

function pawlHistory(context: Context): Promise<Sample> {
  return context.server.withDatabase(async (database) => {
    const submit = async (...editionsOf: readonly number[]) => {
      const files = editionsOf.map((edition) => wholeFile(context, edition))
      const { value, changes } = await submitFiles(context, database, files)
      if (changes !== rowsOf(context)) throw new Error(`edition ${editionsOf.at(-1)} made ${changes} changes`)
      return value!
    }
    await submit(1)
    const second = await submit(2)
    // Nobody times the ones in between, so one process makes them all.
    await submit(...Array.from({ length: editions - 3 }, (_, index) => index + 3))
    const tenth = await submit(editions)
    // As autovacuum would leave the tables a little later.
    await database.query('vacuum analyze')
    return { second, tenth, ...(await runTask(context, database, pawl, 'reads', rowsOf(context), asOf)) }
  })
}

function arrayHistory(context: Context): Promise<Sample> {
  const rows = rowsOf(context)
  return context.server.withDatabase(async (database) => {
    const submit = async (file: string, expected: number) =>
      (await runTask(context, database, array, 'submit', file, expected)).value!
    const first = await submit(wholeFile(context, 1), rows)
    const second = await submit(csvFile({ rows, edition: 2, changeEvery }), rows / changeEvery)
    for (let edition = 3; edition < editions; edition++) await submit(wholeFile(context, edition), rows)
    return { first, second, tenth: await submit(wholeFile(context, editions), rows) }
  })
}

function plainReads(context: Context): Promise<Sample> {
  return context.server.withDatabase((database) => runTask(context, database, plain, 'reads', wholeFile(context, editions)))
}

export const tenth: Group = {
  name: 'tenth',
  measures: ['tenth'],
  async run(context) {
    const history = await takeHistory(context)
    return [
      measure({
        name: 'tenth',
        unit: 'ms',
        better: 'lower',
        results: pick({ pawl: [history, 'pawl', 'tenth'], 'the second': [history, 'pawl', 'second'] }),
        limits: ['the second'],
        bars: [{ atMost: 1.2, times: 'the second' }],
        notes: ['every row is changed by each'],
      }),
    ]
  },
}

export const versionsInArray: Group = {
  name: array.name,
  measures: [array.name],
  async run(context) {
    const [history, submissions] = [await takeHistory(context), await takeSubmissions(context)]
    const beside = (metric: string, ours: number | null) =>
      `${metric}: ${shown(history.value(array.name, metric))} ms (pawl ${shown(ours)} ms)`
    return [
      measure({
        name: array.name,
        unit: 'ms',
        better: 'lower',
        results: pick({ pawl: [submissions, 'pawl', 'second'], [array.name]: [history, array.name, 'second'] }),
        peers: [array.name],
        notes: [
          'the second submission with 20 % changed',
          beside('first', submissions.value('pawl', 'first')),
          `${beside('tenth', history.value('pawl', 'tenth'))}, every row changed`,
          'it is given parsed rows, stages and previews nothing, and readers see it half done',
        ],
      }),
    ]
  },
}

export const reads: Group = {
  name: 'reads',
  measures: ['read page', 'read scope', 'read as-of'],
  async run(context) {
    const results = await takeHistory(context)
    const common = { unit: 'ms', better: 'lower', results, limits: [plain.name] } as const
    return [
      measure({ ...common, name: 'read page', metric: 'page', bars: [{ atMost: 2, times: plain.name }] }),
      measure({ ...common, name: 'read scope', metric: 'scope', bars: [{ atMost: 2, times: plain.name }] }),
      measure({
        ...common,
        name: 'read as-of',
        metric: 'asOf',
        bars: [{ atMost: 3, times: plain.name }],
        notes: [`as of submission ${asOf} of ${editions}`],
      }),
    ]
  },
}
