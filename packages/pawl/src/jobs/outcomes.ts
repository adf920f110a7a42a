// What follows the start and the end of an attempt: counts, events, logs, the dead-job hook, and evidence of refused writes.

import { numbersLiteral, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import type { Events, EventTable } from '../kernel/events.ts'
import { runAs } from '../kernel/handler.ts'
import { leaseStatements } from '../kernel/lease.ts'
import type { Process } from '../kernel/process.ts'
import type { Wakeup } from '../kernel/service.ts'
import { type Attempt, type JobKey, leaseLost } from './attempt.ts'
import type { Ending } from './endings.ts'
import type { DefinedKind } from './kinds.ts'
import { fateOf } from './reconcile.ts'
import type { DeadJob, JobEvents } from './types.ts'
import type { SweptJob } from './watch.ts'

/** How many jobs are remembered that were found to be taken over, each by itself. */
const takenOverMax = 1000

/** Since the worker started. */
export const noCounts = {
  claimed: 0,
  started: 0,
  done: 0,
  failed: 0,
  dead: 0,
  timedOut: 0,
  rescued: 0,
  released: 0,
  refused: 0,
  touches: 0,
  settles: 0,
}
export type Counts = typeof noCounts

/** The events that `pawl.on` can listen to. */
export const jobEvents: EventTable<JobEvents> = {
  'job.started': 'An attempt started in this process.',
  'job.done': 'A job that ran in this process is done and settled.',
  'job.failed': 'An attempt failed; `retryInMs` says when the next one starts.',
  'job.dead': 'A job is dead: its last attempt failed, or its process died too often.',
  'job.lost': 'A job running in this process was cancelled, timed out or taken over.',
  'job.refused': 'A write was refused because its fence is no longer current.',
  'worker.opened': 'The worker has a lease and claims jobs.',
  'worker.lost': 'The worker lost its lease and gets a new one.',
  'worker.rescued': 'This process closed a dead worker, whose jobs are taken over next.',
  'worker.blocked': 'A handler blocked the event loop.',
  'worker.unwritable': 'The database cannot write (disk full or read-only); the worker retries.',
  'worker.deciding': 'This worker leaves a job that must run alone to another process.',
  'worker.idle': 'This worker has nothing left to claim, run or settle.',
}

export interface OutcomesOptions {
  readonly process: Pick<Process, 'config' | 'engine' | 'id' | 'trouble'>
  readonly events: Pick<Events<JobEvents>, 'emit' | 'has'>
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly changed: Wakeup
}

export class Outcomes {
  readonly counts: Counts = { ...noCounts }
  /** Jobs of this incarnation that were taken over, found before the keeper says that the incarnation is closed. */
  readonly #takenOver = new Set<JobKey>()
  readonly #options: OutcomesOptions
  /** Attempts whose refused write is recorded. */
  readonly #recorded = new WeakSet<Attempt>()

  /** Ends here whose follow-up jobs may not be enqueued yet. */
  #following = 0

  constructor(options: OutcomesOptions) {
    this.#options = options
  }

  get hasFollowing(): boolean {
    return this.#following > 0
  }

  #follow(enqueued: Promise<unknown>): void {
    const { changed, process } = this.#options
    this.#following++
    void enqueued
      .catch((error: unknown) =>
        process.config.logger.error({ error: describeError(error) }, 'what follows the end of jobs failed'),
      )
      .then(() => {
        this.#following--
        changed.fire()
      })
  }

  started(attempt: Attempt): void {
    this.counts.started++
    const { events } = this.#options
    if (events.has('job.started')) events.emit('job.started', aboutAttempt(attempt))
  }

  /** All of one kind, or of kinds that are settled by the same statement. */
  settled(endings: readonly Ending[]): void {
    const { events } = this.#options
    this.counts.settles++
    const { settleWith } = endings[0]?.attempt.definition ?? {}
    // Those given back have not ended. An error here must not reach the settler: its ends are stored.
    const ended = endings.filter(({ failed }) => failed?.outcome !== 'released').map(({ attempt }) => attempt)
    if (settleWith !== undefined && ended.length > 0) this.#follow(new Promise((resolve) => resolve(settleWith.settled(ended))))
    for (const { attempt, failed } of endings) {
      if (failed === undefined) {
        this.counts.done++
        if (events.has('job.done')) events.emit('job.done', { ...aboutAttempt(attempt), ranMs: attempt.ranMs() })
      } else if (failed.outcome !== 'released' && failed.outcome !== 'snoozed') this.#failed(attempt, failed)
    }
  }

  #failed(attempt: Attempt, { outcome, delayMs, error }: NonNullable<Ending['failed']>): void {
    const { events, process } = this.#options
    const { id: job, kind, tenant } = attempt
    this.counts.failed++
    if (outcome === 'timed out') this.counts.timedOut++
    events.emit('job.failed', { ...aboutAttempt(attempt), error, retryInMs: delayMs })
    process.config.logger.warn(
      { event: 'job.failed', ...attempt.named, attempt: attempt.attempt, outcome, retryInMs: delayMs ?? null, error },
      delayMs === undefined ? 'job is dead' : 'job failed, will be retried',
    )
    if (delayMs === undefined) this.#died({ tenant, id: job, kind, reason: error ?? '' })
  }

  #died(job: DeadJob): void {
    const { events, kinds, process } = this.#options
    this.counts.dead++
    events.emit('job.dead', job)
    const onDead = kinds.get(job.kind)?.onDead
    if (onDead === undefined) return
    const called = Promise.resolve()
      .then(() => runAs(job.tenant, () => onDead(job)))
      .catch((error: unknown) => process.config.logger.error({ job: job.id, error: describeError(error) }, 'onDead failed'))
    // A user's hook may never end; ours enqueue jobs.
    if (job.kind.startsWith('pawl.')) this.#follow(called)
  }

  /** Jobs that a sweep took from others. */
  swept(jobs: readonly SweptJob[], reason: string): void {
    for (const { tenant, id, kind, state } of jobs) if (state === 'dead') this.#died({ tenant, id, kind, reason })
  }

  /** A running job is no longer ours. */
  lost(attempt: Attempt, reason: 'cancelled' | 'taken over'): void {
    if (reason !== 'cancelled') this.#noteTakenOver(attempt)
    const { tenant, id, kind } = attempt
    this.#options.events.emit('job.lost', { tenant, id, kind, reason })
  }

  /** The settler's fences were refused. A refused failure may follow a commit of ours whose answer was lost: then the job is done. */
  refusedEnds(endings: readonly Ending[]): void {
    for (const { attempt, failed } of endings) {
      this.#noteTakenOver(attempt)
      void this.#refusedEnd(attempt, failed)
    }
  }

  async #refusedEnd(attempt: Attempt, failed: Ending['failed']): Promise<void> {
    if (failed !== undefined && (await fateOf(attempt).catch(() => 'lost')) === 'done')
      return this.settled([{ attempt, result: null }])
    attempt.abort(leaseLost(attempt.row))
    this.refused(attempt, failed?.outcome === 'released' ? 'release' : 'settle')
  }

  /** Keeps evidence of a refused write, once per attempt. */
  refused(attempt: Attempt, what: string): void {
    const { events, process } = this.#options
    const { tenant, id, fence, abortReason } = attempt
    if (abortReason?.code === 'PAWL_LEASE_LOST') this.#noteTakenOver(attempt)
    if (this.#recorded.has(attempt)) return
    this.#recorded.add(attempt)
    this.counts.refused++
    events.emit('job.refused', { tenant, id, fence, what })
    // A cancel, a time-out and a stop were reported already, and a handler that ends after them is the ordinary case.
    const isExpected = ['PAWL_CANCELLED', 'PAWL_TIMED_OUT', 'PAWL_STOPPED'].includes(abortReason?.code ?? '')
    process.config.logger[isExpected ? 'debug' : 'warn'](
      { what, job: id, fence },
      'a write was refused: its fence is no longer current',
    )
    process.engine
      .run(leaseStatements.refuse, {
        what: `job ${what}`,
        tenants: textsLiteral([tenant]),
        subjects: textsLiteral([id]),
        fences: numbersLiteral([fence]),
        holder: attempt.worker,
        detail: abortReason?.message ?? null,
      })
      .catch((error: unknown) => process.trouble(error))
  }

  #noteTakenOver(attempt: Attempt): void {
    if (attempt.worker !== this.#options.process.id) return
    this.#takenOver.add(attempt)
    if (this.#takenOver.size > takenOverMax) this.#takenOver.delete(this.#takenOver.keys().next().value!)
  }

  /** Those of an incarnation that is closed. The next one begins without any. */
  forgetTakenOver(): JobKey[] {
    const known = [...this.#takenOver]
    this.#takenOver.clear()
    return known
  }
}

function aboutAttempt({ tenant, id, kind, attempt }: Attempt): Pick<Attempt, 'tenant' | 'id' | 'kind' | 'attempt'> {
  return { tenant, id, kind, attempt }
}
