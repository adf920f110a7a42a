import { type Context, sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { interleave, type Sample } from '../../harness/rounds.ts'
import type { Child } from '../../harness/system/child.ts'
import type { Group } from '../group.ts'
import { pick } from '../records/samples.ts'
import { pawl, plain, withAll } from './systems.ts'

const without = 'the same call without references'
const gets = 1_000

/** Each document refers to others than the one before, so a page of 100 with two references each reaches up to 200. */
export const reads: Group = {
  name: 'reads',
  measures: ['get by key', 'page, one level', 'page, two levels'],
  run: (context) =>
    // The plain table has one type at a time: its ids are those of the type.
    withAll(
      context,
      [pawl, ...['Section', 'Enrollment', 'Offering'].map((type) => ({ ...plain, name: type }))],
      async (running) => {
        const count = sized(context, 10_000, 2_000)
        const [own, ...tables] = running.map(({ child }) => child)
        await own!.call('run', 'fill', count)
        for (const [index, { name }] of running.slice(1).entries()) await tables[index]!.call('run', 'fill', name, count)
        for (const { database } of running) await database.query('vacuum analyze')
        const results = await interleave(context, 'reads', [
          { name: pawl.name, run: () => pawlReads(context, own!, count) },
          { name: plain.name, run: () => plainReads(context, tables, count) },
        ])
        const limited = (metric: string) =>
          ({ pawl: [results, pawl.name, metric], [plain.name]: [results, plain.name, metric] }) as const
        const page = (name: string, metric: string, atMost: number) =>
          measure({
            name,
            unit: 'ms',
            better: 'lower',
            results: pick({ ...limited(metric), [without]: [results, pawl.name, 'none'] }),
            limits: [plain.name, without],
            bars: [{ atMost, times: without }],
          })
        return [
          measure({
            name: 'get by key',
            unit: 'ms',
            better: 'lower',
            results: pick(limited('get')),
            limits: [plain.name],
            bars: [{ atMost: 2.5, times: plain.name }],
          }),
          page('page, one level', 'one', 2.5),
          page('page, two levels', 'two', 4),
        ]
      },
    ),
}

async function pawlReads(context: Context, own: Child, count: number): Promise<Sample> {
  const page = (type: string) => own.call<number>('run', 'page', type)
  return {
    get: await own.call<number>('run', 'get', count, sized(context, gets, 200)),
    none: await page('Student'),
    one: await page('Enrollment'),
    two: await page('Offering'),
  }
}

async function plainReads(
  context: Context,
  [sections, enrollments, offerings]: readonly Child[],
  count: number,
): Promise<Sample> {
  return {
    get: await sections!.call<number>('run', 'get', count, sized(context, gets, 200)),
    one: await enrollments!.call<number>('run', 'page', count),
    two: await offerings!.call<number>('run', 'page', count),
  }
}
