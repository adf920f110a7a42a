// Several waiting jobs of one kind and tenant in one transaction, for kinds that ask for it. Their rows are locked first, handlers run strictly
// one after another with the settings reset in between, and the group is settled with the commit. Any error rolls everything back and each job
// runs again alone, which is safe because its effects are in this database only.

import { checked } from '../../db/adapters.ts'
import { Calls, calls } from '../../db/calls.ts'
import { numbersLiteral, statement, textsLiteral } from '../../db/statement.ts'
import type { Answer, Transaction } from '../../db/transaction.ts'
import { caught, PawlError } from '../../errors.ts'
import { monotonicMs } from '../../kernel/clock.ts'
import { insideTx, runAs } from '../../kernel/handler.ts'
import { probe } from '../../kernel/probe.ts'
import { type Attempt, keysOf, leaseLost } from '../attempt.ts'
import { Call } from '../call.ts'
import { endOf } from '../endings.ts'
import { warnLate } from '../run.ts'
import { byBytes } from '../settle.ts'
import type { JobTx } from '../types.ts'
import { levelSql } from './handler-transactions.ts'

const home = new URL('..', import.meta.url).href
const lockStatement = statement(home, 'lock-group')
const settleStatement = statement(home, 'settle')

/** A group commits after this time, so that a slow handler does not delay its neighbours' results. */
const groupMs = 50

/** One job's SET LOCAL must not reach the next one. RESET ALL leaves the role as it is. Locks stay until the group commits: they guard its effects. */
const resetSettings = 'reset session authorization; reset role; reset all; discard temp'

/**
 * A handler's connection keeps its planner and search path as the user set them; our statements are kept on their indexes, so that their plans can
 * be kept too, and on our own path. The reset before the first handler removes all of it.
 */
const ownPlans = [
  'search_path = pg_catalog, pg_temp',
  'enable_seqscan = off',
  'enable_hashjoin = off',
  'enable_mergejoin = off',
  'plan_cache_mode = force_generic_plan',
]
  .map((setting) => `set local ${setting}`)
  .join('; ')

export interface SharedEnd {
  /** To be run alone. */
  readonly again: readonly Attempt[]
  /** Not started; back to the buffer. */
  readonly unstarted: readonly Attempt[]
}

interface Done {
  readonly attempt: Attempt
  readonly result: string | null
  readonly progress: string | null
  readonly ranMs: number
}

export async function runShared(group: readonly Attempt[]): Promise<SharedEnd> {
  const { transactions } = group[0]!.runtime
  const client = await transactions.connect(group).catch(() => undefined)
  // Alone, each finds out for itself how it ends without having begun.
  if (client === undefined) return { again: group, unstarted: [] }
  // The wait for a connection may have been long: an attempt that was ended or aborted by now does not start.
  if (group.some((attempt) => attempt.isEnded || attempt.abortReason !== undefined)) {
    client.release()
    return { again: group, unstarted: [] }
  }
  const tx = transactions.begin(client, ownPlans)
  for (const attempt of group) {
    attempt.tx = tx
    // Time spent waiting for its handler's call or for the commit does not count against the job's timeout.
    attempt.become('waiting')
  }
  const started: Attempt[] = []
  try {
    await lockGroup(tx, group)
    if (probe.on) await probe.hit('jobs.tx.begun', group)
    const done = await runEach(tx, group, started)
    if (probe.on) await probe.hit('jobs.tx.before_commit', group)
    await commitGroup(tx, done)
    if (probe.on) await probe.hit('jobs.tx.after_commit', group)
    for (const { attempt, ranMs } of done) {
      attempt.startedMs = monotonicMs() - ranMs
      attempt.finish('settled')
    }
    return { again: [], unstarted: group.slice(done.length) }
  } catch {
    await tx.rollback()
    // The commit may have happened although its answer was lost: run alone, such a job is refused by its fence and found settled.
    const again = started.length > 0 ? started : group
    return { again, unstarted: group.slice(again.length) }
  } finally {
    for (const attempt of group) attempt.tx = undefined
    transactions.end(tx)
  }
}

async function lockGroup(tx: Transaction, group: readonly Attempt[]): Promise<void> {
  const rows = await tx.run(lockStatement, keysOf(group))
  if (rows.length < group.length) throw leaseLost(group[0]!.row)
}

async function runEach(tx: Transaction, group: readonly Attempt[], started: Attempt[]): Promise<Done[]> {
  const startedMs = monotonicMs()
  const done: Done[] = []
  for (const attempt of group) {
    if (done.length > 0 && monotonicMs() - startedMs > groupMs) break
    started.push(attempt)
    // A handler that timed out or lost its job may never answer; the others of its group do not wait for it.
    const result = await Promise.race([caught(runOne(tx, attempt)), attempt.whenEnded()])
    if (result === undefined) throw leaseLost(attempt.row)
    done.push(result)
  }
  return done
}

async function runOne(tx: Transaction, attempt: Attempt): Promise<Done> {
  attempt.startedMs = monotonicMs()
  attempt.become('running')
  // The group's own transaction holds the row, so the last progress is stored with its commit.
  const call = new Call(attempt, true)
  const reading = call.read()
  if (reading !== undefined) await reading
  const handlerTx = new HandlerTx(tx)
  handlerTx[calls].onLate = () => warnLate(attempt)
  try {
    const handle = () => attempt.definition.tx!(call as never, handlerTx, call.context)
    const answer = await insideTx.run(attempt, () => runAs(attempt.tenant, handle))
    if (handlerTx[calls].areOpen) await handlerTx[calls].quiet()
    const end = endOf(attempt, answer)
    if (end.failed !== undefined || attempt.isEnded) throw new Error('The job did not end as done, so it runs alone.')
    return { attempt, result: end.result, progress: call.context.unstored, ranMs: attempt.ranMs() }
  } finally {
    handlerTx[calls].over()
    attempt.become('waiting')
  }
}

async function commitGroup(tx: Transaction, done: readonly Done[]): Promise<void> {
  const batches = [...byBytes(done, done.length, (each) => Buffer.byteLength(`${each.result}${each.progress}`))].map((batch) => ({
    ...keysOf(batch.map(({ attempt }) => attempt)),
    // Its rows are locked in this very transaction, so only a handler of the group can have taken one away: by completing it, or by hand.
    at_least: batch.filter(({ attempt }) => attempt.call?.completedIn === undefined).length,
    results: textsLiteral(batch.map(({ result }) => result)),
    progress: textsLiteral(batch.map(({ progress }) => progress)),
    ran_ms: numbersLiteral(batch.map(({ ranMs }) => ranMs)),
  }))
  const uncork = tx.cork()
  // The last handler's settings go too: they must not reach our settle and commit.
  const level = done.some(({ attempt }) => attempt.isReplicated) ? 'replicated' : 'durable'
  tx.set(`${resetSettings}; ${ownPlans}; ${levelSql(level)}`)
  // If one of them fails, so does the commit.
  const earlier = batches.slice(0, -1).map((values) => tx.run(settleStatement, values))
  const committed = tx.commitWith(settleStatement, batches.at(-1)!)
  uncork()
  await Promise.all([...earlier, committed])
}

/** The group's transaction in one handler's hands. Settings are reset before its first statement. */
class HandlerTx implements JobTx {
  readonly [checked] = true
  readonly [calls] = new Calls()
  readonly #tx: Transaction
  #hasSent = false

  constructor(tx: Transaction) {
    this.#tx = tx
  }

  query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<Answer<Row>> {
    return caught(this.#query<Row>(text, values))
  }

  async #query<Row>(text: string, values: readonly unknown[]): Promise<Answer<Row>> {
    if (this[calls].isOver) {
      this[calls].late()
      throw new PawlError('PAWL_TX_REQUIRED', 'This job has ended. Await every query before the tx handler returns.')
    }
    this[calls].begin()
    try {
      return await this.#send<Row>(text, values)
    } finally {
      this[calls].end()
    }
  }

  #send<Row>(text: string, values: readonly unknown[]): Promise<Answer<Row>> {
    if (this.#hasSent) return this.#tx.query<Row>(text, values)
    this.#hasSent = true
    const uncork = this.#tx.cork()
    this.#tx.set(resetSettings)
    const answer = this.#tx.query<Row>(text, values)
    uncork()
    return answer
  }
}
