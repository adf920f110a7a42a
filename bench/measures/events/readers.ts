import { sized } from '../../harness/context.ts'
import { foreignShare, readCpu } from '../../harness/machine/cpu.ts'
import { type Measure, measure } from '../../harness/report/measure.ts'
import { type Results, resultsOf, type Sample } from '../../harness/rounds.ts'
import { gapTimeoutMs } from '../../peers/events/gap-wait.ts'
import type { Group } from '../group.ts'
import { readersOnly, runLoad, withLock } from './readers-load.ts'

const peers = [...readersOnly.filter((name) => name !== 'pawl'), withLock]
const names = {
  lost: 'lost',
  swapped: 'order violations',
  stranger: `delivered under a stranger's transaction`,
  appender: `delivered under an idle appender`,
  p50: 'lag p50',
  p99: 'lag p99',
  rate: 'transactions',
} as const

/** Five ways to read an outbox. Four read one load at the same time; the fifth needs writers that take turns, so it has a load of its own. */
export const readers: Group = {
  name: 'readers',
  measures: Object.values(names),
  async run(context) {
    const taken = new Map<string, Sample[]>([...readersOnly, withLock].map((name) => [name, []]))
    const noises: number[] = []
    const durationMs = sized(context, 15_000, 5_000)
    const rounds = Math.min(context.rounds, 3)
    for (let round = 0; round < rounds; round++) {
      const before = readCpu([process.pid, context.server.pid])
      for (const isLocked of round % 2 === 0 ? [false, true] : [true, false]) {
        for (const [name, sample] of await runLoad(context, { durationMs, isLocked })) {
          taken.get(name)!.push(sample)
          const said = Object.entries(sample).map(([metric, value]) => `${metric} ${value.toFixed(1)}`)
          context.log(`  round ${round + 1} of ${rounds}: ${name.padEnd(13)} ${said.join(', ')}`)
        }
      }
      const noise = foreignShare(before, readCpu([process.pid, context.server.pid]))
      if (noise !== undefined) noises.push(noise)
    }
    return measuresOf(resultsOf(taken, new Map(), noises))
  },
}

function measuresOf(results: Results): Measure[] {
  const per = 'per 1,000 events'
  const share = '% of what was committed meanwhile'
  const gaps = `gap wait gives a number up after ${gapTimeoutMs / 1_000} s`
  const locked = `the load of '${withLock}' is one in which writers take turns to append`
  const lower = { results, peers, better: 'lower' } as const
  const higher = { results, peers, better: 'higher' } as const
  return [
    measure({ ...lower, name: names.lost, metric: 'lost', unit: per, bars: [{ atMost: 0 }], notes: [gaps] }),
    measure({ ...lower, name: names.swapped, metric: 'swapped', unit: per, bars: [{ atMost: 0 }] }),
    measure({ ...higher, name: names.stranger, metric: 'stranger', unit: share, bars: [{ atLeast: 80 }] }),
    measure({
      ...higher,
      name: names.appender,
      metric: 'appender',
      unit: share,
      bars: [{ atLeast: 80 }],
      notes: [`${withLock}: nothing was committed meanwhile`],
    }),
    measure({
      ...lower,
      name: names.p50,
      metric: 'p50',
      unit: 'ms',
      notes: ['of events committed while no idle transaction was open'],
    }),
    measure({ ...lower, name: names.p99, metric: 'p99', unit: 'ms' }),
    measure({ ...higher, name: names.rate, metric: 'rate', unit: 'per second', peers: [withLock], notes: [locked] }),
  ]
}
