// Several waiting jobs of one kind and tenant in one transaction, for kinds that ask for it. Their fences are locked first, handlers take
// turns with the settings reset in between, and the group is settled with the commit. Any trouble rolls everything back and each job runs
// again alone, which is safe because its effects are in this database only.

import { calls } from '../db/calls.ts'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import type { Transaction } from '../db/transaction.ts'
import { caught } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { runAs } from '../kernel/tenant.ts'
import { type HeldJob, leaseLost } from './held.ts'
import { abandonWhenLost, insideTx, levelSql, type Runner, say } from './runner.ts'
import { byBytes } from './settler.ts'
import { learn, mayOverlap, resetSettings, type Turn, Turns } from './turns.ts'
import type { JobContext } from './types.ts'

const lockStatement = statement(import.meta.url, 'lock-group')
const settleStatement = statement(import.meta.url, 'settle')

/** A group commits when it has run for so long, so that a slow handler does not hold its neighbours' results. */
const groupMs = 50

/**
 * A handler's connection keeps its planner and search path as the user set them; our statements are kept on their indexes, so that their plans can
 * be kept too, and on our own path. The first turn resets all of it.
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
  readonly settled: readonly HeldJob[]
  /** To be run alone. */
  readonly again: readonly HeldJob[]
  /** Not started; back to the buffer. */
  readonly unstarted: readonly HeldJob[]
}

interface Touched {
  /** JSON text of the last progress. */
  progress: string | null
}

interface Result extends Touched {
  readonly json: string | null
  readonly ranMs: number
}

interface Started {
  readonly held: HeldJob
  readonly result: Promise<Result>
}

/** Who waits for its turn, or for the commit, does not run: a neighbour's time must not run out its own. */
const waiting = Number.POSITIVE_INFINITY

export async function runShared(runner: Runner, group: readonly HeldJob[]): Promise<SharedEnd> {
  const client = await runner.connect(group).catch(() => undefined)
  // Alone, each finds out for itself how it ends without having begun.
  if (client === undefined) return { settled: [], again: group, unstarted: [] }
  // It may have waited long for a connection: what has ended or was lost meanwhile does not start.
  if (group.some((held) => held.isEnded || held.lost !== undefined)) {
    client.release()
    return { settled: [], again: group, unstarted: [] }
  }
  const tx = runner.begin(client, ownPlans)
  const started: Started[] = []
  for (const held of group) {
    held.startedMs = waiting
    abandonWhenLost(held, tx)
  }
  try {
    await lockGroup(tx, group)
    if (probe.on) await probe.hit('jobs.tx.begun', group)
    const results = await runInTurns(runner, tx, group, started)
    if (probe.on) await probe.hit('jobs.tx.before_commit', group)
    const settled = started.map((entry) => entry.held)
    await commitGroup(runner, tx, settled, results)
    if (probe.on) await probe.hit('jobs.tx.after_commit', group)
    for (const [index, held] of settled.entries()) held.startedMs = monotonicMs() - results[index]!.ranMs
    return { settled, again: [], unstarted: unstarted(group, settled.length) }
  } catch {
    // Nobody may still be at work on a job that runs again.
    await Promise.allSettled(started.map((entry) => entry.result))
    await tx.rollback()
    // The commit may have happened although its answer was lost: run alone, such a job is refused by its fence and found settled.
    const again = started.length > 0 ? group.slice(0, started.length) : group
    return { settled: [], again, unstarted: unstarted(group, again.length) }
  } finally {
    for (const held of group) held.onLost = held.onGone = undefined
    runner.end(tx)
  }
}

function unstarted(group: readonly HeldJob[], from: number): readonly HeldJob[] {
  const left = group.slice(from)
  for (const held of left) held.startedMs = 0
  return left
}

async function lockGroup(tx: Transaction, group: readonly HeldJob[]): Promise<void> {
  const rows = await tx.run(lockStatement, identity(group))
  if (rows.length < group.length) throw leaseLost(group[0]!.row)
}

/** One after another; where the kind has shown that it may, the next begins as soon as this one has sent its statements. */
async function runInTurns(runner: Runner, tx: Transaction, group: readonly HeldJob[], started: Started[]): Promise<Result[]> {
  const kind = group[0]!.definition
  const turns = new Turns(tx)
  const startedMs = monotonicMs()
  const overlaps = mayOverlap(kind)
  let uncork = tx.cork()
  for (const held of group) {
    if (started.length > 0 && monotonicMs() - startedMs > groupMs) break
    const turn = turns.take()
    const result = untilGone(held, runOne(runner, turn, held))
    started.push({ held, result })
    if (overlaps && turn.isSent) continue
    uncork()
    await (overlaps ? Promise.race([result, turn.sent]) : result)
    uncork = tx.cork()
  }
  uncork()
  const ends = await Promise.allSettled(started.map((entry) => entry.result))
  learn(kind, turns, started.length)
  const failed = ends.find((end) => end.status === 'rejected')
  if (failed !== undefined) throw failed.reason
  if (turns.isOutOfOrder) throw new Error('A handler sent a statement out of turn, so each job runs alone.')
  return ends.map((end) => (end as PromiseFulfilledResult<Result>).value)
}

/** A handler that timed out or lost its job may never answer; the others of its group do not wait for it. */
function untilGone<T>(held: HeldJob, result: Promise<T>): Promise<T> {
  const ended = new Promise<T>((resolve, reject) => {
    held.onGone = () => reject(held.lost ?? leaseLost(held.row))
    result.then(resolve, reject)
  })
  ended.catch(() => undefined)
  return ended
}

async function runOne(runner: Runner, turn: Turn, job: HeldJob): Promise<Result> {
  job.startedMs = monotonicMs()
  job.limits = runner.options.limits
  job.completeCalled = false
  const reading = job.read()
  if (reading !== undefined) await reading
  const touched: Touched = { progress: null }
  turn[calls].onLate = () => runner.late(job)
  job.unstored = () => touched.progress
  try {
    const handle = () => job.definition.tx!(job as never, turn, contextOf(runner, job, touched))
    const answer = await insideTx.run(job, () => runAs(job.tenant, handle))
    if (turn[calls].areOpen) await turn[calls].quiet()
    const end = runner.endOf(job, answer)
    if (end.failed !== undefined || job.isEnded) throw new Error('The job did not end as done, so it runs alone.')
    return { ...touched, json: end.result, ranMs: job.ranMs() }
  } finally {
    turn[calls].over()
    if (!job.isEnded) job.startedMs = waiting
  }
}

function contextOf(runner: Runner, job: HeldJob, touched: Touched): JobContext {
  return {
    get signal() {
      return job.signal
    },
    // The group's own transaction holds the row, so the last progress is stored with its commit.
    touch: (progress) => caught(touch(job, progress, touched)),
    log: (message, fields) => say(runner.options.logger, job, message, fields),
  }
}

async function touch(job: HeldJob, progress: unknown, touched: Touched): Promise<void> {
  if (job.lost !== undefined) throw job.lost
  if (job.isEnded) throw leaseLost(job.row)
  if (progress !== undefined) touched.progress = toJson(progress, 'The progress', job.limits!)
}

async function commitGroup(
  runner: Runner,
  tx: Transaction,
  settled: readonly HeldJob[],
  results: readonly Result[],
): Promise<void> {
  const ends = settled.map((held, index) => ({ held, ...results[index]! }))
  const batches = [...byBytes(ends, settled.length, (end) => Buffer.byteLength(`${end.json}${end.progress}`))].map((batch) => ({
    ...identity(batch.map(({ held }) => held)),
    // Its rows are locked in this very transaction, so only a handler of the group can have taken one away: by completing it, or by hand.
    at_least: batch.filter(({ held }) => !held.completeCalled).length,
    results: textsLiteral(batch.map(({ json }) => json)),
    progress: textsLiteral(batch.map(({ progress }) => progress)),
    ran_ms: numbersLiteral(batch.map(({ ranMs }) => ranMs)),
  }))
  const uncork = tx.cork()
  // The last handler's settings go too: they must not reach our settle and commit.
  const level = settled.some((held) => runner.levelOf(held) === 'replicated') ? 'replicated' : 'durable'
  tx.set(`${resetSettings}; ${ownPlans}; ${levelSql(level)}`)
  // If one of them fails, so does the commit.
  const earlier = batches.slice(0, -1).map((values) => tx.run(settleStatement, values))
  const committed = tx.commitWith(settleStatement, batches.at(-1)!)
  uncork()
  await Promise.all([...earlier, committed])
}

function identity(group: readonly HeldJob[]): Record<'tenants' | 'ids' | 'fences', string> {
  return {
    tenants: textsLiteral(group.map((job) => job.tenant)),
    ids: numbersLiteral(group.map((job) => job.id)),
    fences: numbersLiteral(group.map((job) => job.fence)),
  }
}
