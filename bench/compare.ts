// npm run bench -- compare <commit> jobs|events|projections|records: Pawl of that commit and of this tree in turns, by what a job, event or row costs both sides.
// CPU is from /proc, statements and pages are from pg_stat_statements. CPU is steadier than rates, and counts are steadier than CPU.

import { type Context, setupOf, sized } from './harness/context.ts'
import { drainFilled } from './harness/drain.ts'
import { now } from './harness/machine/clock.ts'
import { cpuMicros } from './harness/machine/cpu.ts'
import type { Database } from './harness/machine/server.ts'
import { parseOptions, usage } from './harness/options.ts'
import { shown } from './harness/report/report.ts'
import { median } from './harness/report/stats.ts'
import { interleave, type Results, type Sample } from './harness/rounds.ts'
import { withContext } from './harness/run.ts'
import { buildOf } from './harness/system/build.ts'
import { Child, type System } from './harness/system/child.ts'
import { readThrough } from './measures/events/through.ts'
import { csvFile } from './measures/records/files.ts'
import { tended } from './measures/records/samples.ts'
import { changeEvery } from './measures/records/submissions.ts'

interface Load {
  readonly name: string
  readonly of: 'job' | 'event' | 'row'
  readonly module: string
  readonly variant?: string
  readonly count: number
  /** Before the clock starts. */
  fill?(child: Child, count: number, database: Database): Promise<unknown>
  run(child: Child, count: number, context: Context): Promise<unknown>
}

const fill: Load['fill'] = (child, count) => child.fill(count)
const submit = (child: Child, rows: number, edition: number) =>
  child.call('run', 'submit', csvFile({ rows, edition, changeEvery }))
const submitFirst: Load['fill'] = async (child, rows, database) => {
  await submit(child, rows, 1)
  await tended(database)
}

/** Through the sequencer and a cursor. */
const noOp: Load = {
  ...{ name: 'no-op', of: 'event', module: 'events/pawl', count: 50_000, fill },
  run: (child, events) => readThrough(child, 'noop', events),
}

const loads: Readonly<Record<string, readonly Load[]>> = {
  jobs: [
    {
      ...{ name: 'drain', of: 'job', module: 'pawl', count: 20_000, fill },
      run: (child, jobs, context) => drainFilled(context, [child], { jobs }),
    },
    {
      ...{ name: 'drain tx', of: 'job', module: 'pawl', count: 5_000, fill },
      run: (child, jobs, context) => drainFilled(context, [child], { jobs, handler: 'tx' }),
    },
    { name: 'enqueue', of: 'job', module: 'pawl', count: 5_000, run: (child, jobs) => child.oneByOne(jobs, 10) },
  ],
  events: [
    {
      ...{ name: 'append', of: 'event', module: 'events/append', variant: 'event', count: 10_000 },
      run: (child, events) => child.oneByOne(events, 10, 'pipelined'),
    },
    noOp,
  ],
  projections: [
    noOp,
    {
      ...{ name: 'upsert', of: 'event', module: 'events/pawl', count: 20_000, fill },
      run: (child, events) => readThrough(child, 'upsert', events),
    },
    {
      ...{ name: 'sink', of: 'event', module: 'events/pawl', variant: 'sink', count: 20_000, fill },
      run: (child, events) => readThrough(child, 'noop', events),
    },
  ],
  records: [
    { name: 'first', of: 'row', module: 'records/pawl', count: 15_000, run: (child, rows) => submit(child, rows, 1) },
    {
      ...{ name: 'second', of: 'row', module: 'records/pawl', count: 15_000, fill: submitFirst },
      run: (child, rows) => submit(child, rows, 2),
    },
    {
      ...{ name: 'replay', of: 'row', module: 'records/pawl', count: 15_000, fill: submitFirst },
      run: (child, rows) => submit(child, rows, 1),
    },
  ],
}

/** What this tree may be of the commit. */
const metrics = [
  { name: 'time', unit: 'µs' },
  { name: 'client CPU', unit: 'µs' },
  { name: 'server CPU', unit: 'µs' },
  { name: 'CPU', unit: 'µs', atMost: 1.1 },
  // How many claims a drain needs depends on when they meet: counts of equal code differ by up to 3 %.
  { name: 'statements', unit: '', atMost: 1.03 },
  { name: 'pages', unit: '', atMost: 1.03 },
] as const

export async function compare([commit = '', which = '', ...args]: readonly string[]): Promise<void> {
  const chosen = loads[which]
  if (chosen === undefined) throw new Error(usage)
  const build = await buildOf(commit)
  await withContext(parseOptions(args), async (context) => {
    for (const load of chosen) {
      const results = await interleave(context, load.name, [
        { name: commit, run: () => sampleOf(context, load, { build }) },
        { name: 'this tree', run: () => sampleOf(context, load, {}) },
      ])
      process.stdout.write(`${tableOf(load, results, commit)}\n`)
    }
  })
}

/** For one job, event or row. */
function sampleOf(context: Context, load: Load, build: Partial<System>): Promise<Sample> {
  const { name, module, variant } = load
  const count = sized(context, load.count, load.count / 5)
  return context.server.withDatabase(async (database) => {
    const child = new Child({ name, module, ...(variant === undefined ? {} : { variant }), ...build })
    const read = async () => ({
      time: now() * 1_000,
      'client CPU': cpuMicros([child.pid]),
      'server CPU': cpuMicros([context.server.pid]),
      ...(await database.counted()),
    })
    try {
      await child.prepare(setupOf(context, database))
      await load.fill?.(child, count, database)
      await database.query('vacuum analyze')
      const from = await read()
      await load.run(child, count, context)
      const to = await read()
      const per = (metric: keyof typeof from) => (to[metric] - from[metric]) / count
      return {
        time: per('time'),
        'client CPU': per('client CPU'),
        'server CPU': per('server CPU'),
        CPU: per('client CPU') + per('server CPU'),
        statements: per('statements'),
        pages: per('pages'),
      }
    } finally {
      await child.stop()
    }
  }, true)
}

/** The ratio is the median of the rounds' ratios: both sides of a round ran within seconds. */
function tableOf({ name, of }: Load, results: Results, commit: string): string {
  const lines = metrics.map(({ name: metric, unit, ...bar }) => {
    const [old, own] = [results.samples(commit, metric), results.samples('this tree', metric)]
    if (old.length === 0 || own.length === 0) return `  ${metric.padEnd(12)} not measured`
    const ratios = own.slice(0, old.length).map((value, round) => value / old[round]!)
    const ratio = median(ratios)
    const verdict = 'atMost' in bar ? (ratio <= bar.atMost ? 'met' : `NOT MET: at most ${bar.atMost}`) : ''
    const spread = (values: readonly number[]) =>
      `${shown(median(values))} (${shown(Math.min(...values))}–${shown(Math.max(...values))}) ${unit}`
    return `  ${metric.padEnd(12)}${spread(old).padEnd(28)}${spread(own).padEnd(28)}x ${ratio.toFixed(2)} (${Math.min(...ratios).toFixed(2)}–${Math.max(...ratios).toFixed(2)})  ${verdict}`.trimEnd()
  })
  return [`${name}, for one ${of}: ${commit}, this tree, and the ratio of both`, ...lines].join('\n')
}
