// What follows the end of an attempt: counting, events, logs, the dead-job hook, and evidence of refused writes.

import type { Logger } from '../config.ts'
import { classify } from '../db/classify.ts'
import type { Connection } from '../db/driver.ts'
import { numbersLiteral, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import type { Events } from '../kernel/events.ts'
import type { Failures, LoopWatch } from '../kernel/failures.ts'
import { leaseStatements } from '../kernel/lease.ts'
import { runAs } from '../kernel/tenant.ts'
import type { Counts } from './counts.ts'
import { type HeldJob, leaseLost } from './held.ts'
import type { SweptJob } from './keeper.ts'
import type { DefinedKind } from './kinds.ts'
import type { Ending } from './settler.ts'
import type { DeadJob, JobEvents } from './types.ts'

export interface EndsOptions {
  readonly counts: Counts
  readonly engine: Connection
  readonly events: Events<JobEvents>
  readonly failures: Failures
  readonly kinds: ReadonlyMap<string, DefinedKind>
  readonly logger: Logger
  readonly isSettled: (held: HeldJob) => Promise<boolean>
}

export class Ends {
  readonly #options: EndsOptions

  constructor(options: EndsOptions) {
    this.#options = options
  }

  settled(endings: readonly Ending[]): void {
    const { counts, events } = this.#options
    counts.settles++
    for (const { held, failed } of endings) {
      if (failed === undefined) {
        counts.done++
        if (events.has('job.done'))
          events.emit('job.done', {
            tenant: held.tenant,
            id: held.id,
            kind: held.kind,
            attempt: held.attempt,
            ranMs: held.ranMs(),
          })
      } else if (failed.outcome !== 'released' && failed.outcome !== 'snoozed') this.#failed(held, failed)
    }
  }

  #failed(held: HeldJob, failed: NonNullable<Ending['failed']>): void {
    const { counts, events, logger } = this.#options
    counts.failed++
    if (failed.outcome === 'timed out') counts.timedOut++
    const about = { tenant: held.tenant, id: held.id, kind: held.kind, attempt: held.attempt }
    events.emit('job.failed', { ...about, error: failed.error, retryInMs: failed.delayMs })
    logger.warn(
      {
        event: 'job.failed',
        job: held.id,
        kind: held.kind,
        attempt: held.attempt,
        outcome: failed.outcome,
        retryInMs: failed.delayMs ?? null,
        error: failed.error,
      },
      failed.delayMs === undefined ? 'job is dead' : 'job failed, will be retried',
    )
    if (failed.delayMs === undefined)
      this.#died({ tenant: held.tenant, id: held.id, kind: held.kind, reason: failed.error ?? '' })
  }

  #died(job: DeadJob): void {
    const { counts, events, kinds, logger } = this.#options
    counts.dead++
    events.emit('job.dead', job)
    const onDead = kinds.get(job.kind)?.onDead
    if (onDead === undefined) return
    Promise.resolve()
      .then(() => runAs(job.tenant, () => onDead(job)))
      .catch((error: unknown) => logger.error({ job: job.id, error: describeError(error) }, 'onDead failed'))
  }

  /** Jobs that a sweep took from others. */
  swept(jobs: readonly SweptJob[], reason: string): void {
    for (const { tenant, id, kind, state } of jobs) if (state === 'dead') this.#died({ tenant, id, kind, reason })
  }

  refused(endings: readonly Ending[]): void {
    for (const ending of endings) void this.#refusedOne(ending)
  }

  /** A refused failure may follow a commit of ours whose answer was lost: then the job is done. */
  async #refusedOne({ held, failed }: Ending): Promise<void> {
    if (failed !== undefined && (await this.#options.isSettled(held).catch(() => false)))
      return this.settled([{ held, result: null }])
    held.lose(leaseLost(held.row))
    this.keepEvidence(held, failed?.outcome === 'released' ? 'release' : 'settle')
  }

  keepEvidence(held: HeldJob, what: string): void {
    if (held.isRefusalKept) return
    held.isRefusalKept = true
    const { counts, engine, events, logger } = this.#options
    counts.refused++
    events.emit('job.refused', { tenant: held.tenant, id: held.id, fence: held.fence, what })
    // A cancel, a time-out and a stop were told already, and a handler that ends after them is the ordinary case.
    const isExpected = ['PAWL_CANCELLED', 'PAWL_TIMED_OUT', 'PAWL_STOPPED'].includes(held.lost?.code ?? '')
    logger[isExpected ? 'debug' : 'warn'](
      { what, job: held.id, fence: held.fence },
      'a write was refused: its fence is no longer current',
    )
    engine
      .run(leaseStatements.refuse, {
        what: `job ${what}`,
        tenants: textsLiteral([held.tenant]),
        subjects: textsLiteral([held.id]),
        fences: numbersLiteral([held.fence]),
        holder: held.worker,
        detail: held.lost?.message ?? null,
      })
      .catch((error: unknown) => this.trouble(error))
  }

  /** Where a loop of this worker tells how its turns end. */
  loop(name: string): LoopWatch {
    const { succeeded, failed } = this.#options.failures.loop(name, this.#options.engine)
    return {
      succeeded,
      failed: (error) => {
        this.trouble(error)
        failed(error)
      },
    }
  }

  /** Trouble with the database: counted, and said when it cannot write. Whoever met it tries again by itself. */
  trouble(error: unknown): void {
    const { counts, events, logger } = this.#options
    counts.error(error)
    if (classify(error) !== 'unwritable') return
    events.emit('worker.unwritable', { error })
    logger.error({ error: describeError(error, 300) }, 'the database cannot write (disk full or read-only); retrying')
  }
}
