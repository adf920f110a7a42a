import { type Context, sized } from '../../harness/context.ts'
import { cpuMicros } from '../../harness/machine/cpu.ts'
import { type Measure, measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { median } from '../../harness/report/stats.ts'
import { interleave, type Results, type Sample } from '../../harness/rounds.ts'
import type { Group } from '../group.ts'
import { pick } from '../records/samples.ts'
import { cascade, pawl, type Running, rewrite, withAll } from './systems.ts'

const systems = [pawl, cascade, rewrite]
const peers = [cascade.name, rewrite.name]
/** As they are called, and how many dependents they have in a quick run. */
const sizes = [
  { name: '0', full: 0, quick: 0 },
  { name: '730', full: 730, quick: 73 },
  { name: '10,000', full: 10_000, quick: 1_000 },
  { name: '100,000', full: 100_000, quick: 5_000 },
] as const
const most = sizes.at(-1)!.name
const names = sizes.map(({ name }) => name)
const putsPerRound = 20

/** Renames of schools with more and more sessions: the PUT, and the refresh of the most. */
export const oneLevel: Group = {
  name: 'one level',
  measures: [...names.slice(1).map((name) => `rename with ${name}`), 'rename pages', 'refresh 100,000'],
  run: (context) =>
    withAll(context, systems, async (running) => {
      for (const { child } of running)
        for (const size of sizes)
          await child.call('run', 'plant', size.name, { sessions: sized(context, size.full, size.quick), offerings: 0 })
      return [
        ...(await takeRenames(context, running)),
        refreshOf(await takeRefreshes(context, running, most), 'refresh 100,000', 1.5),
      ]
    }),
}

/** A school with sessions that have an offering each. */
export const twoLevels: Group = {
  name: 'two levels',
  measures: ['refresh 50,000 + 50,000'],
  run: (context) =>
    withAll(context, systems, async (running) => {
      const shape = { sessions: sized(context, 50_000, 2_500), offerings: 1 }
      for (const { child } of running) await child.call('run', 'plant', most, shape)
      return [refreshOf(await takeRefreshes(context, running, most), 'refresh 50,000 + 50,000', 2.2)]
    }),
}

/** No worker runs: this is what the caller of the PUT waits for. */
async function takeRenames(context: Context, running: readonly Running[]): Promise<Measure[]> {
  for (const { database } of running) await database.query('vacuum analyze')
  const own = running[0]!.child
  const results = await interleave(
    context,
    'rename',
    running.map(({ name, child, database }) => ({
      name,
      run: async () => {
        await database.query('vacuum')
        if (name !== pawl.name) return Object.fromEntries(await inTurn((size) => child.call<number>('run', 'rename', size)))
        const taken = await child.call<[string, number[]][]>('run', 'renames', names, putsPerRound)
        return Object.fromEntries(taken.map(([size, times]) => [size, median(times)]))
      },
    })),
  )
  const costs = await interleave(
    context,
    'rename pages',
    sizes.map(({ name }) => ({ name, run: () => own.call<Sample>('run', 'costOfRename', name) })),
    1,
  )
  const rows = names.map((name) => costs.value(name, 'rows'))
  const none = 'none'
  return [
    ...names.slice(1).map((name) =>
      measure({
        name: `rename with ${name}`,
        unit: 'ms',
        better: 'lower',
        results: pick({ pawl: [results, pawl.name, name], [none]: [results, pawl.name, '0'], ...beside(results, name) }),
        peers,
        limits: [none],
        bars: [{ atMost: 2, times: none }],
      }),
    ),
    measure({
      name: 'rename pages',
      unit: 'pages',
      better: 'lower',
      results: pick({ pawl: [costs, most, 'pages'], [none]: [costs, '0', 'pages'] }),
      limits: [none],
      bars: [
        { atMost: 1.05, times: none },
        { says: 'the same rows', isMet: new Set(rows).size === 1 },
      ],
      notes: [
        `with ${names.join(', ')} dependents: ${names.map((name) => shown(costs.value(name, 'pages'))).join(', ')} pages, ${rows.join(', ')} rows`,
      ],
    }),
  ]
}

const beside = (results: Results, metric: string) =>
  Object.fromEntries(peers.map((peer) => [peer, [results, peer, metric] as const]))

async function inTurn(run: (size: string) => Promise<number>): Promise<[string, number][]> {
  const taken: [string, number][] = []
  for (const name of names) taken.push([name, await run(name)])
  return taken
}

/** From the call until the last body has the new key. */
async function takeRefreshes(context: Context, running: readonly Running[], parent: string): Promise<Results> {
  await running[0]!.child.call('run', 'start')
  return interleave(
    context,
    'refresh',
    running.map(({ name, child, database }) => ({
      name,
      run: async () => {
        if (name === pawl.name) await child.call('run', 'settled')
        // As autovacuum would between two renames of one school.
        await database.query('vacuum analyze')
        const pids = [context.server.pid, child.pid]
        const before = cpuMicros(pids)
        const sample =
          name === pawl.name
            ? await child.call<Sample>('run', 'refresh', parent)
            : { value: await child.call<number>('run', 'rename', parent) }
        return { ...sample, cpu: (cpuMicros(pids) - before) / 1_000 }
      },
    })),
  )
}

function refreshOf(results: Results, name: string, atMost: number): Measure {
  const cpu = (contender: string) => `${contender} ${shown(results.value(contender, 'cpu'))} ms`
  return measure({
    name,
    unit: 'ms',
    better: 'lower',
    results,
    peers,
    bars: [{ atMost, times: cascade.name }],
    notes: [
      `the PUT returns after ${shown(results.value(pawl.name, 'renamed'))} ms`,
      `CPU: ${[pawl.name, ...peers].map(cpu).join(', ')}`,
    ],
  })
}
