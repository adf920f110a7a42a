// What follows the end of an attempt: counting, events, logs, the dead-job hook, and evidence of refused writes.

import { numbersLiteral, textsLiteral } from '../db/statement.ts'
import { describeError } from '../errors.ts'
import type { Events } from '../kernel/events.ts'
import { leaseStatements } from '../kernel/lease.ts'
import type { Process } from '../kernel/process.ts'
import { runAs } from '../kernel/tenant.ts'
import type { Counts } from './counts.ts'
import { type HeldJob, leaseLost } from './held.ts'
import type { DefinedKind } from './kinds.ts'
import type { Ending } from './settler.ts'
import type { DeadJob, JobEvents } from './types.ts'
import type { SweptJob } from './watch.ts'

export interface EndsOptions {
  readonly process: Process
  readonly counts: Counts
  readonly events: Events<JobEvents>
  readonly kinds: ReadonlyMap<string, DefinedKind>
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
    const { counts, events } = this.#options
    const { logger } = this.#options.process.config
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
    const { counts, events, kinds, process } = this.#options
    counts.dead++
    events.emit('job.dead', job)
    const onDead = kinds.get(job.kind)?.onDead
    if (onDead === undefined) return
    Promise.resolve()
      .then(() => runAs(job.tenant, () => onDead(job)))
      .catch((error: unknown) => process.config.logger.error({ job: job.id, error: describeError(error) }, 'onDead failed'))
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
    const { counts, events, process } = this.#options
    counts.refused++
    events.emit('job.refused', { tenant: held.tenant, id: held.id, fence: held.fence, what })
    // A cancel, a time-out and a stop were told already, and a handler that ends after them is the ordinary case.
    const isExpected = ['PAWL_CANCELLED', 'PAWL_TIMED_OUT', 'PAWL_STOPPED'].includes(held.lost?.code ?? '')
    process.config.logger[isExpected ? 'debug' : 'warn'](
      { what, job: held.id, fence: held.fence },
      'a write was refused: its fence is no longer current',
    )
    process.engine
      .run(leaseStatements.refuse, {
        what: `job ${what}`,
        tenants: textsLiteral([held.tenant]),
        subjects: textsLiteral([held.id]),
        fences: numbersLiteral([held.fence]),
        holder: held.worker,
        detail: held.lost?.message ?? null,
      })
      .catch((error: unknown) => process.trouble(error))
  }
}
