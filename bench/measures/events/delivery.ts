import pg from 'pg'
import { type Context, setupOf, sized } from '../../harness/context.ts'
import { pause } from '../../harness/machine/clock.ts'
import type { Database } from '../../harness/machine/server.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { percentile } from '../../harness/report/stats.ts'
import { interleave } from '../../harness/rounds.ts'
import { Child, type System } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'

const pawl: System = { name: 'pawl', module: 'events/pawl' }
const sink: System = { name: 'pawl sink', module: 'events/pawl', variant: 'sink' }
const notify: System = { name: 'notify', module: 'events/notify' }
const contenders: readonly { name: string; system: System; hasStranger?: boolean }[] = [
  { name: 'pawl', system: pawl },
  { name: 'stranger', system: pawl, hasStranger: true },
  { name: 'sink', system: sink },
  { name: 'notify', system: notify },
]
const ceilingMs = 50

/** An idle system: from the moment when one process sends its commit to the start of the handler in another. */
export const delivery: Group = {
  name: 'delivery',
  measures: ['delivery p50', 'delivery p99', `delivery p50 under a stranger's transaction`],
  async run(context) {
    const results = await interleave(
      context,
      'delivery',
      contenders.map(({ name, system, hasStranger = false }) => ({
        name,
        run: async () => {
          const times = await deliveries(context, system, hasStranger)
          return { p50: percentile(times, 50), p99: percentile(times, 99) }
        },
      })),
    )
    const common = { unit: 'ms', better: 'lower', results } as const
    return [
      measure({
        ...common,
        name: 'delivery p50',
        metric: 'p50',
        limits: ['notify'],
        bars: [{ atMost: 4, times: 'notify' }],
        notes: [`to the function of a sink: ${shown(results.value('sink', 'p50'))} ms`],
      }),
      measure({
        ...common,
        name: 'delivery p99',
        metric: 'p99',
        limits: ['notify'],
        bars: [{ atMost: ceilingMs, says: `<= ${ceilingMs} ms` }],
        notes: [`to the function of a sink: ${shown(results.value('sink', 'p99'))} ms`],
      }),
      measure({
        ...common,
        name: `delivery p50 under a stranger's transaction`,
        metric: 'p50',
        pawl: 'stranger',
        limits: ['pawl'],
        bars: [{ atMost: 1.2, times: 'pawl', says: '<= 1.2 x delivery p50' }],
      }),
    ]
  },
}

function deliveries(context: Context, system: System, hasStranger: boolean): Promise<number[]> {
  const samples = sized(context, 200, 40)
  return context.server.withDatabase(async (database) => {
    const [reader, writer] = [new Child(system), new Child(system)]
    const stranger = hasStranger ? await openStranger(database) : undefined
    try {
      for (const child of [reader, writer]) await child.prepare(setupOf(context, database))
      await reader.work({ handler: 'stamp', concurrency: 1 }, Number.POSITIVE_INFINITY)
      // The first ones warm both processes up; then the reader is given time to fall asleep before each.
      const times: number[] = []
      for (let n = -10; n < samples; n++) {
        await pause(10 + Math.random() * 10)
        const time = await deliverOnce(reader, writer, n)
        if (n >= 0) times.push(time)
      }
      return times
    } finally {
      await stranger?.end()
      await Promise.all([reader.stop(), writer.stop()])
    }
  })
}

/** Somebody else's transaction that has written, and idles. */
async function openStranger(database: Database): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: database.url })
  await client.connect()
  await client.query('create table elsewhere (n integer)')
  await client.query('begin')
  await client.query('insert into elsewhere values (1)')
  return client
}

export async function deliverOnce(reader: Child, writer: Child, n: number): Promise<number> {
  const delivered = deliveryOf(reader, n)
  const committedAt = await writer.enqueue(n, 'tx')
  return (await delivered) - committedAt
}

/** When the handler of event n starts. */
export function deliveryOf(reader: Child, n: number): Promise<number> {
  return new Promise<number>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('an event was not delivered within 60 s')), 60_000)
    reader.onStamp = (stamp, at) => {
      if (stamp !== n) return
      clearTimeout(timer)
      resolve(at)
    }
  })
}
