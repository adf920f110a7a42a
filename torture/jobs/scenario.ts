// Jobs under torture: three workers, a producer, an operator, and a stranger who leaves transactions open.

import { probeNames } from 'pawl/testing'
import { drawFaults, type FaultKind, keeperFaults, probes, type Random } from '../plan.ts'
import { crashCases, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { JobsTraffic, producer, producerSlot, rigSlot, worker } from './traffic.ts'

const slots = ['w1', 'w2', 'w3']

export const jobs: Scenario<JobsTraffic> = {
  name: 'jobs',
  recorded: [
    { table: 'job', columns: 'id kind state fence holder attempt crashes suspect' },
    { table: 'job_attempt', columns: 'job_id fence outcome' },
    { table: 'worker', columns: 'id lease_until seen_at closed_at', seen: { now: 'pawl.now()' } },
  ],
  // No key and no index that could refuse a second effect. Each own transaction of a producer leaves a row in produced.
  ledgers: `
    create table torture.effect (
      job_id bigint not null, fence bigint not null, kind text not null, proc text not null,
      xid text not null default pg_current_xact_id()::text
    );
    create table torture.produced (key text not null);`,
  holds: 'job',
  programs: { worker, producer },
  aims: {
    slots,
    probes: {
      kill: probes(
        'jobs: claim.after run.before run.after settle.before settle.after tx.begun tx.before_commit tx.after_commit fail.after',
      ),
      pause: probes('jobs: settle.before tx.before_commit run.after'),
      reset: probes('jobs: claim.before settle.before tx.begun tx.before_commit run.before'),
      terminate: probes('jobs: claim.before settle.before tx.handled run.before'),
      restart: probes('jobs: settle.before tx.before_commit claim.before'),
      'commit-unknown': probes('jobs: settle.before tx.before_commit claim.before fail.before'),
      'sql-40001': probes('jobs: claim.before settle.before tx.begun tx.before_commit fail.before'),
      clock: probes('jobs: claim.after run.before settle.before'),
      block: probes('jobs: run.before settle.after'),
      drain: probes('jobs: run.before tx.begun'),
    },
    hitsMax: (probe) => (probe.startsWith('jobs.fail') ? 2 : 6),
    more: (storm) => {
      const enqueueing = (kinds: readonly FaultKind[]) => (random: Random) => {
        return { probe: 'jobs.enqueue.sent' as const, hit: random.whole(3, 12), kind: random.pick(kinds) }
      }
      return {
        ...keeperFaults(slots, storm, 8, probes('keeper: rescue.closed rescue.after')),
        // No 40001: without a transaction the enqueue has committed here, and no database would answer that.
        [producerSlot]: drawFaults(producerSlot, storm, 4, enqueueing(['kill', 'kill', 'pause', 'reset', 'commit-unknown'])),
        // At which of the rig's enqueues without a transaction the answer is lost.
        [rigSlot]: drawFaults('enqueues', storm, 4, enqueueing(['commit-unknown'])),
      }
    },
  },
  traffic: JobsTraffic,
  stories,
  matrix: {
    cases: crashCases({
      probes: probeNames.filter((probe) => /^(jobs|keeper|worker)\./.test(probe)),
      provocations: {
        'enqueue in a transaction': probes('jobs: enqueue.sent'),
        'enqueue without a transaction': probes('jobs: enqueue.sent'),
        stop: probes('jobs: release.before worker: closed'),
        pause: probes('jobs: incarnation.lost'),
        'death of another': probes('keeper: asked rescue.closed rescue.after'),
      },
      withoutStatement: probes('jobs: run.before run.after incarnation.lost worker: closed opened'),
      once: probes('jobs: release.before worker: closed'),
      // A process opens a further incarnation only after it has lost one; the flag of a sleeper stays until there is continuous work.
      again: { 'worker.opened': 'pause', 'jobs.sleep.flagged': 'burst' },
      committed: ['enqueue without a transaction'],
    }),
    concurrency: 4,
    users: ({ provocation }) => {
      if (!provocation.startsWith('enqueue')) return undefined
      return { role: 'producer', how: provocation.includes('without') ? 'plain' : 'own' }
    },
    provoke,
    roundMs: ({ provocation }) => (provocation === 'work' || provocation === 'burst' ? 2500 : 5000),
  },
  isAtRest: async (rig) => (await rig.count("select count(*) as n from pawl.job where state <> 'dead'")) === 0,
  judge,
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
