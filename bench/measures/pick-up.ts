import { type Context, setupOf, sized } from '../harness/context.ts'
import { handlersPerProcess } from '../harness/drain.ts'
import { pause } from '../harness/machine/clock.ts'
import { measure } from '../harness/report/measure.ts'
import { shown } from '../harness/report/report.ts'
import { percentile } from '../harness/report/stats.ts'
import { interleave } from '../harness/rounds.ts'
import { Child, type System } from '../harness/system/child.ts'
import type { Via } from '../harness/system/protocol.ts'
import * as systems from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const pawlWithWorker: System = { ...systems.pawl, variant: 'with worker' }
const contenders: readonly { name: string; enqueuer: System; via?: Via }[] = [
  { name: 'pawl', enqueuer: pawlWithWorker },
  { name: 'pawl enqueue-only process', enqueuer: systems.pawl },
  { name: `pawl user's transaction`, enqueuer: systems.pawl, via: 'tx' },
  ...[systems.graphile, systems.pgBossNotify, systems.bullmqPostgres, systems.bullmq].map((enqueuer) => ({
    name: enqueuer.name,
    enqueuer,
  })),
]
const peers = contenders.slice(3).map(({ name }) => name)
const variants = ['', ' enqueue-only process', ` user's transaction`] as const

/** An idle system: from the call that enqueues, in one process, to the start of the handler in another. */
export const pickUp: Group = {
  name: 'pick-up',
  measures: [...variants.flatMap((variant) => [`pick-up p50${variant}`, `pick-up p99${variant}`]), 'claims per lone job'],
  async run(context) {
    const results = await interleave(
      context,
      'pick-up',
      contenders.map(({ name, enqueuer, via = 'plain' }) => ({
        name,
        unavailable: systems.whyNot(enqueuer, context.redis),
        run: async () => {
          const { times } = await pickUps(context, enqueuer, via)
          return { p50: percentile(times, 50), p99: percentile(times, 99) }
        },
      })),
    )
    const common = { unit: 'ms', better: 'lower', results, peers } as const
    const counted = await interleave(context, 'claims per lone job', [
      { name: 'pawl', run: async () => (await pickUps(context, pawlWithWorker, 'plain', true)).counted },
    ])
    return [
      ...variants.flatMap((variant) => [
        measure({
          ...common,
          name: `pick-up p50${variant}`,
          metric: 'p50',
          pawl: `pawl${variant}`,
          bars: [{ atMost: 0.95, times: systems.graphile.name }],
        }),
        measure({
          ...common,
          name: `pick-up p99${variant}`,
          metric: 'p99',
          pawl: `pawl${variant}`,
          bars: [{ atMost: 1, times: systems.graphile.name }],
        }),
      ]),
      measure({
        name: 'claims per lone job',
        unit: 'statements',
        better: 'lower',
        results: counted,
        bars: [{ atMost: 1.5 }],
        notes: [
          `of ${shown(counted.value('pawl', 'statements'))} statements in all, of both processes, enqueue and settle included`,
        ],
      }),
    ]
  },
}

interface PickedUp {
  readonly times: readonly number[]
  /** Statements for a job: claims as the value, and all of them. */
  readonly counted: { readonly value: number; readonly statements: number }
}

function pickUps(context: Context, system: System, via: Via, isCounted = false): Promise<PickedUp> {
  const samples = sized(context, 200, 40)
  return context.server.withDatabase(async (database) => {
    const { variant, ...plain } = system
    const worker = new Child(variant === pawlWithWorker.variant ? plain : system)
    const enqueuer = new Child(system)
    try {
      for (const child of [worker, enqueuer]) await child.prepare(setupOf(context, database))
      await worker.work({ handler: 'stamp', concurrency: handlersPerProcess }, Number.POSITIVE_INFINITY)
      // The first ones warm both processes up; then the worker is given time to fall asleep before each.
      const times: number[] = []
      await pause(500)
      let before = await database.counted()
      for (let n = -10; n < samples; n++) {
        if (n === 0) before = await database.counted()
        await pause(10 + Math.random() * 10)
        const time = await pickUpOnce(worker, enqueuer, n, via)
        if (n >= 0) times.push(time)
      }
      const after = await database.counted()
      return {
        times,
        counted: {
          value: (after.claims - before.claims) / samples,
          statements: (after.statements - before.statements) / samples,
        },
      }
    } finally {
      await Promise.all([worker.stop(), enqueuer.stop()])
    }
  }, isCounted)
}

async function pickUpOnce(worker: Child, enqueuer: Child, n: number, via: Via): Promise<number> {
  const picked = new Promise<number>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('a job was not picked up within 30 s')), 30_000)
    worker.onStamp = (stamp, at) => {
      if (stamp !== n) return
      clearTimeout(timer)
      resolve(at)
    }
  })
  const enqueuedAt = await enqueuer.enqueue(n, via)
  return (await picked) - enqueuedAt
}
