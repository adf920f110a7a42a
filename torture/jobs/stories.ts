// The stories of jobs. Without a canary each of them is clean.

import { endLease } from 'pawl/testing'
import { type Holder, leaseStatements } from '../../packages/pawl/src/kernel/lease.ts'
import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import { aims } from './aims.ts'
import { Workload } from './workload.ts'

interface Stage {
  readonly rig: Rig
  readonly workload: Workload
}

interface JobsStory extends Omit<Story, 'play'> {
  play(stage: Stage): Promise<void>
}

const patienceMs = 20_000

const told: readonly JobsStory[] = [
  {
    name: 'calm',
    tells: 'Two workers do jobs of every shape; nothing goes wrong.',
    async play({ rig, workload }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const kind of ['tx', 'complete', 'outside', 'shared'])
        await workload.enqueueOwn(kind, kind, keyed(kind, 15, { ms: 5 }))
      await rig.until(async () => (await count(rig, 'select count(*)::integer as n from pawl.job')) === 0, 8000)
      // Leases are renewed a few times, so that there is something to look at.
      await rig.until(async () => (await count(rig, 'select count(*)::integer as n from torture.lease')) >= 6, 5000)
    },
  },
  {
    name: 'zombie',
    tells: 'A worker is stopped just before it stores its results, another takes its jobs over, and then it wakes up.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('outside', 'outside', keyed('outside', 3, { againMs: 1500 }))
      await workload.enqueueOwn('tx', 'tx', keyed('tx', 3, { ms: 300, againMs: 600 }))
      await rig.startProcess('w1', { faults: [{ probe: 'jobs.settle.before', hit: 1, kind: 'pause' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await rig.startProcess('w2')
      await rig.until(
        async () =>
          (await count(
            rig,
            "select count(*)::integer as n from torture.transition where to_state = 'running' and old_crashes > 0",
          )) > 0,
        patienceMs,
      )
    },
  },
  {
    name: 'late commit',
    tells:
      'A worker hangs just before it commits a transaction; its lease ends, another worker does the job, and then it commits.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('tx', 'tx', keyed('tx', 1))
      // Blocked and not stopped: when it goes on, the commit is the very next thing it does, before it can hear of its loss.
      await rig.startProcess('w1', { faults: [{ probe: 'jobs.tx.before_commit', hit: 1, kind: 'block', ms: 5000 }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      const [held] = await rig.query<{ holder: number }>("select holder from pawl.job where state = 'running'")
      await endLease(rig.admin, held!.holder)
      await rig.startProcess('w2')
      await rig.until(() => wrote(rig, 'lost') > 0, patienceMs)
    },
  },
  {
    name: 'kill',
    tells: 'A worker is killed while it runs jobs, and another takes them over.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('outside', 'outside', keyed('outside', 4, { ms: 50 }))
      await workload.enqueueOwn('tx', 'tx', keyed('tx', 4, { ms: 50 }))
      await rig.startProcess('w1', { faults: [{ probe: 'jobs.run.after', hit: 1, kind: 'kill' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await rig.startProcess('w2')
    },
  },
  {
    name: 'producer dies',
    tells: 'A process that enqueues in a transaction of its own is killed between its insert and its commit.',
    async play({ rig }) {
      const faults = [{ probe: 'jobs.enqueue.sent', hit: 2, kind: 'kill' }] as const
      await rig.startProcess('w1')
      await rig.startProcess('p1', { role: 'producer', how: 'own', faults })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await rig.stopProcess('p1')
    },
  },
  {
    name: 'late renewal',
    tells:
      'An incarnation is closed before it renews; and the only worker is stopped for longer than its lease, and goes on under it.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('tx', 'tx', keyed('tx', 3))
      await renewTooLate(rig)
      await rig.startProcess('w1')
      await rig.until(async () => (await count(rig, 'select count(*)::integer as n from pawl.job')) === 0, patienceMs)
      await rig.pause('w1', true)
      const before = await count(rig, 'select coalesce(max(n), 0)::integer as n from torture.lease')
      await rig.until(
        async () => (await count(rig, 'select coalesce(max(n), 0)::integer as n from torture.lease')) > before + 1,
        5000,
      )
    },
  },
  {
    name: 'stranger',
    tells: "A stranger's open transaction has the first job of the queue locked while a worker claims the others.",
    async play({ rig, workload }) {
      await workload.enqueueOwn('first', 'tx', keyed('first', 1))
      const [first] = await rig.query<{ id: string }>('select id::text as id from pawl.job')
      await workload.enqueueOwn('rest', 'tx', keyed('rest', 5))
      let isEnough = false
      const held = workload.holdOpen(first!.id, () => isEnough)
      await rig.startProcess('w1')
      await rig.until(
        async () => wrote(rig, 'claim waits') > 0 || (await count(rig, 'select count(*)::integer as n from pawl.job')) === 1,
        patienceMs,
      )
      isEnough = true
      await held
    },
  },
  {
    name: 'lost answer',
    tells: 'An enqueue is committed, and its answer never arrives.',
    async play({ rig, workload }) {
      for (let batch = 0; batch < 3; batch++) {
        workload.loseNextAnswer()
        await workload.enqueuePlain(`lost ${batch}`, 'tx', keyed(`lost ${batch}`, 2))
      }
      await rig.startProcess('w1')
    },
  },
  {
    name: 'poison',
    tells: 'A job that kills its process is claimed together with a dozen harmless ones.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('poison', 'poison', keyed('poison', 1))
      await workload.enqueueOwn('outside', 'outside', keyed('outside', 12, { ms: 400 }))
      await Promise.all([rig.startProcess('w1', { concurrency: 20 }), rig.startProcess('w2', { concurrency: 20 })])
      await rig.until(() => wrote(rig, 'poison') >= 2, patienceMs)
    },
  },
  {
    name: 'drain',
    tells: 'A worker with jobs in its buffer is told to stop, and is started again.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('outside', 'outside', keyed('outside', 40, { ms: 100 }))
      await rig.startProcess('w1', { concurrency: 2 })
      await rig.until(() => wrote(rig, 'start') >= 12, patienceMs)
      rig.signal('w1', 'SIGTERM')
    },
  },
  {
    name: 'cancel',
    tells: 'A running job is cancelled, and its handler does not listen at once.',
    async play({ rig, workload }) {
      await workload.enqueueOwn('slow', 'slow', keyed('slow', 2, { ms: 1500 }))
      await rig.startProcess('w1')
      await rig.until(() => wrote(rig, 'start') >= 1, patienceMs)
      const started = readHistory(rig.dir).find((entry) => entry.op === 'start')
      if (started !== undefined) await workload.cancel(String(started.job))
    },
  },
]

export const stories: readonly Story[] = told.map((story) => ({
  ...story,
  async play(rig) {
    const workload = await Workload.open(rig, calmPlan({ name: 'jobs', aims }, 1))
    try {
      await story.play({ rig, workload })
    } finally {
      await workload.close()
    }
  },
}))

/** The statements alone: a process finds out that it is closed before it renews. */
async function renewTooLate(rig: Rig): Promise<void> {
  const connection = rig.connection('keeper')
  const [opened] = await connection.run<Holder>(leaseStatements.open, {
    name: 'rig',
    host: 'rig',
    pid: process.pid,
    release: 'rig',
    queues: '{}',
    kinds: '{}',
    concurrency: 1,
    look_ms: 500,
    lease_ms: rig.options.leaseMs,
  })
  const own = { worker: opened!.id, nonce: opened!.nonce }
  await connection.run(leaseStatements.close, { ...own, reason: 'stopped' })
  await connection.run(leaseStatements.beat, { ...own, lease_ms: rig.options.leaseMs })
  await connection.close()
}

function keyed<T extends object>(name: string, count: number, more?: T): (T & { key: string })[] {
  return Array.from({ length: count }, (_, index) => ({ ...(more as T), key: `${name}/${index}` }))
}

function wrote(rig: Rig, op: string): number {
  return readHistory(rig.dir).filter((entry) => entry.op === op).length
}

async function count(rig: Rig, text: string): Promise<number> {
  const [row] = await rig.query<{ n: number }>(text)
  return row!.n
}
