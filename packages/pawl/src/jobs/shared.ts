// Several waiting jobs of one kind and tenant in one transaction, for kinds that ask for it. Their fences are locked first, handlers run
// one after another with the settings reset in between, and the group is settled with the commit. Any trouble rolls everything back
// and each job runs again alone, which is safe because its effects are in this database only.

import { bind, numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { OwnTransaction } from '../db/transaction.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { probe } from '../kernel/probe.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { readPayload } from './kinds.ts'
import { assertSafe } from './payload.ts'
import { insideTx, type Runner } from './runner.ts'
import type { JobContext } from './types.ts'

const lockStatement = statement(import.meta.url, 'lock-group')
const settleStatement = statement(import.meta.url, 'settle')

/** A group commits when it has run for so long, so that a slow handler does not hold its neighbours' results. */
const groupMs = 50

export interface SharedEnd {
  readonly settled: readonly HeldJob[]
  /** To be run alone. */
  readonly again: readonly HeldJob[]
  /** Not started; back to the buffer. */
  readonly unstarted: readonly HeldJob[]
}

export async function runShared(runner: Runner, group: readonly HeldJob[]): Promise<SharedEnd> {
  const isOurs = () => group.some((held) => !held.isEnded && held.lost === undefined)
  const client = await runner.connect(isOurs).catch(() => undefined)
  // Alone, each finds out for itself how it ends without having begun.
  if (client === undefined) return { settled: [], again: group, unstarted: [] }
  const tx = new OwnTransaction(client)
  const ran: { held: HeldJob; result: string | null }[] = []
  try {
    const held = await lockGroup(tx, group)
    const startedMs = monotonicMs()
    if (probe.on) await probe.hit('jobs.tx.begun', group)
    for (const job of held) {
      if (ran.length > 0 && monotonicMs() - startedMs > groupMs) break
      ran.push({ held: job, result: await runOne(runner, tx, job) })
    }
    if (probe.on) await probe.hit('jobs.tx.before_commit', group)
    // Unnamed: planned for the table as it is now, since a handler's connection keeps its planner as the user set it.
    await tx.commitWith(settleStatement.text, settleValues(ran))
    if (probe.on) await probe.hit('jobs.tx.after_commit', group)
    const settled = ran.map((entry) => entry.held)
    return { settled, again: [], unstarted: group.filter((job) => !settled.includes(job)) }
  } catch {
    await tx.rollback()
    // The commit may have happened although its answer was lost: run alone, such a job is refused by its fence and found settled.
    const again = ran.length > 0 ? group.slice(0, ran.length + 1) : group
    return { settled: [], again, unstarted: group.filter((job) => !again.includes(job)) }
  } finally {
    tx.release()
  }
}

async function lockGroup(tx: OwnTransaction, group: readonly HeldJob[]): Promise<HeldJob[]> {
  const { rows } = await tx.query<{ id: string; tenant: string }>(lockStatement.text, bind(lockStatement, identity(group)))
  if (rows.length < group.length) throw leaseLost(group[0]!.row)
  return [...group]
}

async function runOne(runner: Runner, tx: OwnTransaction, job: HeldJob): Promise<string | null> {
  job.startedMs = monotonicMs()
  assertSafe(job.row.payload, `The payload of '${job.kind}': payload`, runner.options.limits)
  job.payload = await readPayload(job.definition, job.row.payload, job.row.payload_version)
  const context: JobContext = {
    get signal() {
      return job.signal
    },
    // The group's own transaction holds the row, so progress could not be written before it ends anyway.
    touch: async () => undefined,
    log: (message, fields = {}) => runner.options.logger.info({ job: job.id, kind: job.kind, ...fields }, message),
  }
  const end = runner.endOf(job, await insideTx.run(job, () => job.definition.tx!(job as never, tx, context)))
  if (end.failed !== undefined || job.isEnded) throw new Error('It ends in another way than done, so it runs alone.')
  // Pipelined, not awaited: one job's SET LOCAL must not reach the next one, and an error here fails the commit.
  tx.query('reset all').catch(() => undefined)
  return end.result
}

function settleValues(ran: readonly { held: HeldJob; result: string | null }[]): unknown[] {
  return bind(settleStatement, {
    ...identity(ran.map((entry) => entry.held)),
    results: textsLiteral(ran.map((entry) => entry.result)),
    ran_ms: numbersLiteral(ran.map((entry) => entry.held.ranMs())),
  })
}

function identity(group: readonly HeldJob[]): Record<'tenants' | 'ids' | 'fences', string> {
  return {
    tenants: textsLiteral(group.map((job) => job.tenant)),
    ids: numbersLiteral(group.map((job) => job.id)),
    fences: numbersLiteral(group.map((job) => job.fence)),
  }
}
