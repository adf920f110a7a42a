// The stories of jobs, and the planted bugs that show in them. Without its bug each story is clean.

import { isPawlError, Jobs } from 'pawl'
import { endLease } from 'pawl/testing'
import { Connection } from '../../packages/pawl/src/db/driver.ts'
import { bind } from '../../packages/pawl/src/db/statement.ts'
import { Transaction } from '../../packages/pawl/src/db/transaction.ts'
import { Call } from '../../packages/pawl/src/jobs/call.ts'
import { leaseStatements } from '../../packages/pawl/src/kernel/lease.ts'
import { openIncarnation } from '../../packages/pawl/test/support/incarnation.ts'
import { alike, rewrites, sendOutside, swap } from '../canary.ts'
import { readHistory } from '../history.ts'
import type { ChildOptions } from '../process.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import type { CheckName } from './checks.ts'
import type { JobsTraffic } from './traffic.ts'

const liveSql = 'select count(*) as n from pawl.job'
const leasesSql = "select count(*) as n from torture.change where source = 'worker'"
const claimedAgainSql = `
  select count(*) as n from torture.change
  where source = 'job' and new ->> 'state' = 'running' and (old ->> 'crashes')::integer > 0`

const clockErrorMs: Readonly<Record<string, number>> = { w1: -120_000, w2: 120_000 }
const byClientClock = (text: string, slot: string): string =>
  swap(/pawl\.now\(\)/g, `to_timestamp(${(Date.now() + (clockErrorMs[slot] ?? 0)) / 1000}::double precision)`)(text)
const unfenced = swap('and j.fence = g.fence', '')
const sameFence = swap(/fence = (\(select )?pawl\.next_fence\(\)\)?/, 'fence = greatest(j.fence, 1)')

export const stories: Readonly<Record<string, Story<JobsTraffic, CheckName>>> = {
  calm: {
    tells: 'Two workers run jobs of every shape; nothing goes wrong.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const kind of ['tx', 'complete', 'outside', 'shared']) await traffic.enqueue(kind, kind, keyed(kind, 15, { ms: 5 }))
      await rig.until(async () => (await rig.count(liveSql)) === 0, 8000)
      // Leases are renewed a few times, so that there is something to check.
      await rig.until(async () => (await rig.count(leasesSql)) >= 6, 5000)
    },
    shows: {
      'client-clock': rewrites('leases in database time', alike('open-worker beat claim claim-suspect', byClientClock)),
      'settle-before-commit': { caughtBy: 'effect and completion in one transaction', inProcess: completeBeforeCommit },
      'settle-forgets-history': rewrites('nothing lost', { settle: swap(/from gone o\n\)/, 'from gone o\n  where false\n)') }),
      'settle-writes-history-twice': rewrites('one end each', {
        settle: swap(/from gone o\n\)/, 'from gone o, generate_series(1, 2)\n)'),
      }),
      'rejection-dropped': { caughtBy: 'no process fails', inProcess: dropRejection },
    },
  },
  zombie: {
    tells: 'A worker is stopped just before it stores its results, another takes its jobs over, and then it wakes up.',
    async play(rig, traffic) {
      await traffic.enqueue('outside', 'outside', keyed('outside', 3, { againMs: 1500 }))
      await traffic.enqueue('tx', 'tx', keyed('tx', 3, { ms: 300, againMs: 600 }))
      await rig.strike('w1', { probe: 'jobs.settle.before', hit: 1, kind: 'pause' })
      await rig.startProcess('w2')
      await rig.until(async () => (await rig.count(claimedAgainSql)) > 0)
    },
    shows: {
      'no-fence': {
        caughtBy: 'settled by its holder',
        statements: alike('settle settle-failed', unfenced),
        functions: { complete_job: swap(/and j\.fence \S+ p_fence/, ''), guard_job: swap('and j.fence = p_fence', '') },
        inProcess: () => rewriteSharedSettle(unfenced),
      },
      'fence-reused': rewrites(
        'fences never repeat',
        alike('claim claim-suspect rescue settle-failed release-unknown', sameFence),
      ),
      'key-per-attempt': { caughtBy: 'delivered outside', inProcess: keyPerAttempt },
    },
  },
  'late commit': {
    tells: 'A worker hangs just before it commits; its lease ends, another worker runs the job, and then it commits.',
    async play(rig, traffic) {
      await traffic.enqueue('tx', 'tx', keyed('tx', 1))
      // Blocked and not stopped: when it goes on, it commits before it can hear of its loss.
      await rig.strike('w1', { probe: 'jobs.tx.before_commit', hit: 1, kind: 'block', ms: 5000 })
      await endLease(rig.admin, await rig.count("select holder as n from pawl.job where state = 'running'"))
      await rig.startProcess('w2')
      await rig.until(() => rig.wrote('lost') > 0)
    },
    shows: {
      'refusal-ignored-at-commit': {
        caughtBy: 'applied once',
        // A rescuer that may end sessions ends the one that commits late: both defences go.
        statements: { 'end-sessions': swap('and a.xact_start < w.closed_at', 'and false') },
        functions: { complete_job: swap(/if not found then[\s\S]*?end if;/, '') },
      },
    },
  },
  kill: {
    tells: 'A worker is killed while it runs jobs, and another takes them over.',
    async play(rig, traffic) {
      await traffic.enqueue('outside', 'outside', keyed('outside', 4, { ms: 50 }))
      await traffic.enqueue('tx', 'tx', keyed('tx', 4, { ms: 50 }))
      await rig.strike('w1', { probe: 'jobs.run.after', hit: 1, kind: 'kill' })
      await rig.startProcess('w2')
    },
    shows: {
      'rescue-forgets-jobs': rewrites('all at rest', {
        rescue: swap(/where j\.ctid = l\.ctid/, 'where false and j.ctid = l.ctid'),
      }),
      'dead-at-first-crash': {
        caughtBy: 'dead for a cause',
        // The parameter stays in use, so that its number still means something.
        statements: { rescue: swap(/coalesce\(j\.max_crashes, (\$\d+::integer)\)/g, '(1 + 0 * $1)') },
      },
    },
  },
  'producer dies': {
    tells: 'A process that enqueues in a transaction of its own is killed between its insert and its commit.',
    async play(rig) {
      const faults = [{ probe: 'jobs.enqueue.sent', hit: 2, kind: 'kill' }] as const
      await rig.startProcess('w1')
      await rig.startProcess('p1', { role: 'producer', how: 'own', faults })
      await rig.until(() => rig.wrote('fault') > 0)
      await rig.stopProcess('p1')
    },
    shows: { 'enqueue-outside-transaction': { caughtBy: 'nothing lost', inProcess: enqueueOutsideTransaction } },
  },
  'late renewal': {
    tells: 'An incarnation is closed before it renews; and the only worker is stopped for longer than its lease, and goes on.',
    async play(rig, traffic) {
      await traffic.enqueue('tx', 'tx', keyed('tx', 3))
      await renewTooLate(rig)
      await rig.startProcess('w1')
      await rig.until(async () => (await rig.count(liveSql)) === 0)
      await rig.pause('w1', true)
      const before = await rig.count(leasesSql)
      await rig.until(async () => (await rig.count(leasesSql)) > before + 1, 5000)
    },
    shows: {
      'renewal-revives-closed-incarnation': rewrites('closed incarnations stay closed', {
        beat: swap('and w.closed_at is null', ''),
      }),
    },
  },
  stranger: {
    tells: "A stranger's open transaction has the first job of the queue locked while a worker claims the others.",
    async play(rig, traffic) {
      await traffic.enqueue('first', 'tx', keyed('first', 1))
      const [first] = await rig.query<{ id: string }>('select id::text as id from pawl.job')
      await traffic.enqueue('rest', 'tx', keyed('rest', 5))
      let isEnough = false
      const held = traffic.holdOpen(first!.id, () => isEnough)
      await rig.startProcess('w1')
      await rig.until(async () => rig.wrote('claim waits') > 0 || (await rig.count(liveSql)) === 1)
      isEnough = true
      await held
    },
    shows: { 'skip-locked-removed': rewrites('claims wait for no lock', alike('claim claim-suspect', swap('skip locked', ''))) },
  },
  'lost answer': {
    tells: 'An enqueue is committed, and its answer never arrives.',
    async play(rig, traffic) {
      for (const batch of ['lost 0', 'lost 1', 'lost 2']) {
        traffic.loseNextAnswer()
        await traffic.enqueue(batch, 'tx', keyed(batch, 2), 'plain')
      }
      await rig.startProcess('w1')
    },
    shows: { 'blind-retry-after-commit-unknown': { caughtBy: 'nothing lost', inRig: blindEnqueue } },
  },
  poison: {
    tells: 'A job that kills its process is claimed together with a dozen harmless ones.',
    async play(rig, traffic) {
      await traffic.enqueue('poison', 'poison', keyed('poison', 1))
      await traffic.enqueue('outside', 'outside', keyed('outside', 12, { ms: 400 }))
      await Promise.all([rig.startProcess('w1', { concurrency: 20 }), rig.startProcess('w2', { concurrency: 20 })])
      await rig.until(() => rig.wrote('poison') >= 2)
    },
    shows: {
      'attempt-burnt-for-bystanders': rewrites('deciding runs alone', {
        rescue: swap(/suspect = case when l\.is_crash[^\n]*/, 'suspect = false,'),
      }),
    },
  },
  drain: {
    tells: 'A worker with jobs in its buffer is told to stop, and is started again.',
    async play(rig, traffic) {
      await traffic.enqueue('outside', 'outside', keyed('outside', 40, { ms: 100 }))
      await rig.startProcess('w1', { concurrency: 2 })
      await rig.until(() => rig.wrote('start') >= 12)
      rig.signal('w1', 'SIGTERM')
    },
    shows: {
      'release-burns-attempt': rewrites('attempts add up', {
        'settle-failed': swap("g.outcome in ('snoozed', 'released')", "g.outcome = 'snoozed'"),
      }),
    },
  },
  cancel: {
    tells: 'A running job is cancelled, and its handler does not listen at once.',
    async play(rig, traffic) {
      await traffic.enqueue('slow', 'slow', keyed('slow', 2, { ms: 1500 }))
      await rig.startProcess('w1')
      await rig.until(() => rig.wrote('start') >= 1)
      const started = readHistory(rig.dir).find(({ op }) => op === 'start')
      if (started !== undefined) await traffic.cancel(String(started.job))
    },
    shows: { 'cancel-ignored-on-completion': { caughtBy: 'cancel respected', inRig: deafCancel } },
  },
}

/** The statements alone: a process learns that it is closed before it renews. */
async function renewTooLate(rig: Rig): Promise<void> {
  const connection = new Connection(rig.database, 'keeper')
  const { leaseMs } = rig.options
  const { id: worker, nonce } = await openIncarnation(connection, { leaseMs })
  await connection.run(leaseStatements.close, { worker, nonce, reason: 'stopped' })
  await connection.run(leaseStatements.beat, { worker, nonce, lease_ms: leaseMs })
  await connection.close()
}

function keyed<T extends object>(name: string, length: number, more?: T): (T & { key: string })[] {
  return Array.from({ length }, (_, index) => ({ ...(more as T), key: `${name}/${index}` }))
}

// ---- bugs that are no rewritten statement: a call that is made differently

const { commitWith } = Transaction.prototype

/** A shared group's settle travels with its commit, past the place where statements are rewritten. */
function rewriteSharedSettle(rewrite: (text: string) => string): void {
  Transaction.prototype.commitWith = function (this: Transaction, last, ...more) {
    return commitWith.call(this, last.name === 'complete' ? last : { ...last, text: rewrite(last.text) }, ...more)
  }
}

function completeBeforeCommit({ url }: ChildOptions): void {
  Transaction.prototype.commitWith = async function (this: Transaction, last, values, ...more) {
    if (last.name !== 'complete') return commitWith.call(this, last, values, ...more)
    await sendOutside(url, last.text, bind(last, values))
    await this.commit()
  }
}

/** In the first settle of each process: by then it has started. */
function dropRejection(): void {
  Transaction.prototype.commitWith = async function (this: Transaction, ...args: Parameters<typeof commitWith>) {
    Transaction.prototype.commitWith = commitWith
    await commitWith.apply(this, args)
    setTimeout(() => void Promise.reject(new Error('planted')), 200)
  }
}

const { enqueueMany, cancel } = Jobs.prototype

function blindEnqueue(): void {
  Jobs.prototype.enqueueMany = async function (this: Jobs, ...args: Parameters<typeof enqueueMany>) {
    for (;;) {
      try {
        return await enqueueMany.apply(this, args)
      } catch (error) {
        if (!isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) throw error
      }
    }
  } as typeof enqueueMany
}

function enqueueOutsideTransaction(): void {
  Jobs.prototype.enqueueMany = function (this: Jobs, kind, payloads, { tx: _ignored, ...options } = {}) {
    return enqueueMany.call(this, kind, payloads, options)
  } as typeof enqueueMany
}

function deafCancel(): void {
  Jobs.prototype.cancel = async function (this: Jobs, id, options) {
    const job = await this.get(id)
    return job?.state === 'running' ? { was: 'running' } : cancel.call(this, id, options)
  }
}

function keyPerAttempt(): void {
  Object.defineProperty(Call.prototype, 'idempotencyKey', {
    get(this: Call) {
      return `${this.id}-${this.attempt}`
    },
  })
}
