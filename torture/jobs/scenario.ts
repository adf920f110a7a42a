// Jobs under torture: three workers, a producer, an operator, and a stranger who leaves transactions open.

import { type ProbeName, probeNames } from 'pawl/testing'
import { drawFaults, drawKeeperFault, probes } from '../plan.ts'
import { crashCases, type Place, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { JobsTraffic, producer, producerSlot, rigSlot, worker } from './traffic.ts'

const slots = ['w1', 'w2', 'w3']

export const jobs: Scenario<JobsTraffic> = {
  name: 'jobs',
  recorded: [
    { table: 'job', columns: 'id kind state fence holder attempt crashes suspect' },
    { table: 'worker', columns: 'id lease_until seen_at closed_at', seen: { now: 'pawl.now()' } },
  ],
  // No key and no index that could refuse a second effect. Each own transaction of a producer leaves a row in produced.
  ledgers: `
    create table torture.effect (
      job_id bigint not null, fence bigint not null, kind text not null, proc text not null, xid text not null default pg_current_xact_id()::text
    );
    create table torture.produced (key text not null);`,
  programs: { worker, producer },
  aims: {
    slots,
    probes: {
      kill: [
        ...probes('jobs.claim.after jobs.run.before jobs.run.after jobs.settle.before jobs.settle.after jobs.tx.begun'),
        ...probes('jobs.tx.before_commit jobs.tx.after_commit jobs.fail.after'),
      ],
      pause: probes('jobs.settle.before jobs.tx.before_commit jobs.run.after'),
      reset: probes('jobs.claim.before jobs.settle.before jobs.tx.begun jobs.tx.before_commit jobs.run.before'),
      terminate: probes('jobs.claim.before jobs.settle.before jobs.tx.handled jobs.run.before'),
      restart: probes('jobs.settle.before jobs.tx.before_commit jobs.claim.before'),
      'commit-unknown': probes('jobs.settle.before jobs.tx.before_commit jobs.claim.before jobs.fail.before'),
      'sql-40001': probes('jobs.claim.before jobs.settle.before jobs.tx.begun jobs.tx.before_commit jobs.fail.before'),
      clock: probes('jobs.claim.after jobs.run.before jobs.settle.before'),
      block: probes('jobs.run.before jobs.settle.after'),
      drain: probes('jobs.run.before jobs.tx.begun'),
    },
    hitsMax: (probe) => (probe.startsWith('jobs.fail') ? 2 : 6),
    more: (seed, seconds) => ({
      ...Object.fromEntries(
        slots.map((slot) => [
          `${slot} keeper`,
          drawFaults(`keeper ${slot}`, { seed, seconds, everySeconds: 8 }, (random) =>
            drawKeeperFault(random, probes('keeper.rescue.closed keeper.rescue.after')),
          ),
        ]),
      ),
      // No 40001: without a transaction the enqueue has committed here, and no database would answer that.
      [producerSlot]: drawFaults(producerSlot, { seed, seconds, everySeconds: 4 }, (random) => ({
        probe: 'jobs.enqueue.sent',
        hit: random.whole(3, 12),
        kind: random.pick(['kill', 'kill', 'pause', 'reset', 'commit-unknown'] as const),
      })),
      // At which of the rig's enqueues without a transaction the answer is lost.
      [rigSlot]: drawFaults('enqueues', { seed, seconds, everySeconds: 4 }, (random) => ({
        probe: 'jobs.enqueue.sent',
        hit: random.whole(3, 12),
        kind: 'commit-unknown',
      })),
    }),
  },
  traffic: JobsTraffic,
  stories,
  matrix: {
    cases: crashCases(places()),
    concurrency: 4,
    users: ({ provocation }) => {
      if (!provocation.startsWith('enqueue')) return undefined
      return { role: 'producer', how: provocation.includes('without') ? 'plain' : 'own' }
    },
    provoke,
    roundMs: ({ provocation }) => (provocation === 'work' || provocation === 'burst' ? 2500 : 5000),
  },
  isAtRest: async (rig) => (await rig.count("select count(*) as n from pawl.job where state <> 'dead'")) === 0,
  async isTakenOver(rig, pid) {
    const [row] = await rig.query<{ over: boolean | null }>(
      `select bool_and(w.closed_at is not null) and not exists (
         select from pawl.job j where j.state = 'running' and j.holder = any (array_agg(w.id))
       ) as over
       from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
      [pid],
    )
    return row?.over === true
  },
  judge,
}

/** Where a process of a case meets its fault, and what has to happen around it before. */
function places(): Place[] {
  const withoutStatement = probes('jobs.run.before jobs.run.after jobs.incarnation.lost worker.closed worker.opened')
  const once = probes('jobs.release.before worker.closed')
  const provocations: Partial<Record<ProbeName, string>> = {
    'jobs.release.before': 'stop',
    'worker.closed': 'stop',
    'jobs.incarnation.lost': 'pause',
    'keeper.asked': 'death of another',
    'keeper.rescue.closed': 'death of another',
    'keeper.rescue.after': 'death of another',
  }
  // A process opens a further incarnation only after it has lost one; the flag of a sleeper stays until there is continuous work.
  const again: Partial<Record<ProbeName, string>> = { 'worker.opened': 'pause', 'jobs.sleep.flagged': 'burst' }
  const enqueue = (provocation: string) => ({ probe: 'jobs.enqueue.sent' as const, provocation, variant: provocation })
  return [
    enqueue('enqueue in a transaction'),
    { ...enqueue('enqueue without a transaction'), isWithoutStatement: true, isCommitted: true },
    ...probeNames
      .filter((probe) => /^(jobs|keeper|worker)\./.test(probe) && probe !== 'jobs.enqueue.sent')
      .map((probe) => ({
        probe,
        provocation: provocations[probe] ?? 'work',
        isWithoutStatement: withoutStatement.includes(probe),
        isOnce: once.includes(probe),
        again: again[probe],
      })),
  ]
}

async function provoke(traffic: JobsTraffic, { each, slot, key }: Round): Promise<void> {
  const { rig } = traffic
  switch (each.provocation) {
    case 'stop':
      return stopWithBacklog(traffic, slot, key)
    case 'burst':
      return enqueueOutside(traffic, key, 200)
    case 'pause':
      return rig.pause(slot)
    case 'death of another':
      await enqueueShapes(traffic, key)
      return rig.signal('w2', 'SIGKILL')
    default:
      // The worker beside it takes its share: a later hit needs more of everything.
      for (let time = 0; time < each.hit; time++) await enqueueShapes(traffic, `${key}/${time}`)
  }
}

async function enqueueShapes(traffic: JobsTraffic, key: string): Promise<void> {
  const shapes: readonly [kind: string, length: number, more: object][] = [
    ['tx', 4, { ms: 5 }],
    ['shared', 4, {}],
    ['complete', 3, { ms: 5 }],
    ['outside', 4, { ms: 10 }],
    ['flaky', 2, { failures: 1 }],
    ['slow', 1, { ms: 300 }],
    ['snoozing', 1, {}],
  ]
  for (const [kind, length, more] of shapes)
    await traffic.enqueue(
      `${key}/${kind}`,
      kind,
      Array.from({ length }, (_, item) => ({ ...more, key: `${key}/${kind}/${item}` })),
    )
}

function enqueueOutside(traffic: JobsTraffic, key: string, length: number, ms = 0): Promise<void> {
  return traffic.enqueue(
    key,
    'outside',
    Array.from({ length }, (_, item) => ({ ms, key: `${key}/${item}` })),
  )
}

/** More than it can run at once, so that it has something to give back when it is told to stop. */
async function stopWithBacklog(traffic: JobsTraffic, slot: string, key: string): Promise<void> {
  const { rig } = traffic
  const before = rig.wrote('start', slot)
  await enqueueOutside(traffic, key, 60, 60)

  await rig.until(() => rig.wrote('start', slot) > before + 6, 5000)
  rig.signal(slot, 'SIGTERM')
}
