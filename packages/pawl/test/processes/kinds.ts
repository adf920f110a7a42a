// The kinds that worker processes run. Every effect is a row of the table `effect`, which has no unique key: a ledger must not enforce
// what it is there to show.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Job, JobContext, Pawl, Tx } from 'pawl'
import type pg from 'pg'
import type { Said } from './protocol.ts'

export interface WorkPayload {
  /** On these attempts the handler says `holding` and waits for the word `go`; for ever if it never comes. */
  readonly hold?: readonly number[]
  /** When the work is done: before the application's transaction, inside it just before the fenced call, or after that and before the commit. */
  readonly at?: 'before' | 'inside' | 'end'
  /** Takes this long, without blocking anyone. */
  readonly sleepMs?: number
  /** On these attempts it blocks the event loop for blockMs. */
  readonly block?: readonly number[]
  readonly blockMs?: number
  /** On these attempts it kills its own process. */
  readonly kill?: readonly number[]
  /** On these attempts it fails, after its effect was written. */
  readonly fail?: readonly number[]
}

export interface HandlerWorld {
  readonly say: (said: Said) => void
  readonly go: Promise<void>
  /** Connections of the application's own. */
  readonly effects: pg.Pool
}

const kindNames = ['guarded', 'tx', 'shared', 'completed', 'plain', 'follow', 'brief'] as const
export type KindName = (typeof kindNames)[number]

export const ledgerSql = `create table effect (job_id bigint not null, kind text not null, attempt integer not null, pid integer not null,
  at timestamptz not null default clock_timestamp())`
const effectSql = 'insert into effect (job_id, kind, attempt, pid) values ($1::bigint, $2::text, $3::integer, $4::integer)'

type Work = Job<WorkPayload>

export function defineKinds(pawl: Pawl, names: readonly KindName[], world: HandlerWorld): { enqueue: () => Promise<string> } {
  const retry = { attempts: 5, crashes: 3, initialMs: 1, jitter: false } as const
  const definitions: Readonly<Record<KindName, () => unknown>> = {
    // Effects in the application's own transaction, held by the fence; settled afterwards.
    guarded: () => pawl.jobs.define<WorkPayload>('guarded', { retry, run: (job, context) => guarded(job, context, world) }),
    // Effect, follow-up job, event and completion in one transaction of Pawl's.
    tx: () => pawl.jobs.define<WorkPayload>('tx', { retry, tx: (job, tx) => inTx(pawl, job, tx, world) }),
    shared: () => pawl.jobs.define<WorkPayload>('shared', { retry, share: 4, tx: (job, tx) => inTx(pawl, job, tx, world) }),
    // Effect, event and completion in the application's own transaction.
    completed: () =>
      pawl.jobs.define<WorkPayload>('completed', { retry, run: (job, context) => completed(pawl, job, context, world) }),
    plain: () => pawl.jobs.define<WorkPayload>('plain', { retry, run: (job) => work(job, world) }),
    brief: () => pawl.jobs.define<WorkPayload>('brief', { retry, timeout: '700ms', run: (job) => work(job, world) }),
    follow: () =>
      pawl.jobs.define<{ parent: string }>('follow', { retry, tx: async (job, tx) => void (await writeEffect(tx, job)) }),
  }
  for (const name of names) definitions[name]()
  return { enqueue: async () => (await pawl.jobs.enqueue(names[0]!, {})).id }
}

async function guarded(job: Work, context: JobContext, world: HandlerWorld): Promise<void> {
  await workAt('before', job, world)
  await telling(job, context, world, async (client) => {
    await workAt('inside', job, world)
    await job.guard(client)
    await writeEffect(client, job)
    await workAt('end', job, world)
  })
}

async function completed(pawl: Pawl, job: Work, context: JobContext, world: HandlerWorld): Promise<void> {
  await workAt('before', job, world)
  await telling(job, context, world, async (client) => {
    await writeEffect(client, job)
    await appendEnded(pawl, job, client)
    await workAt('inside', job, world)
    await job.complete(client)
    await workAt('end', job, world)
  })
}

async function workAt(at: NonNullable<WorkPayload['at']>, job: Work, world: HandlerWorld): Promise<void> {
  if ((job.payload.at ?? 'before') === at) await work(job, world)
}

async function inTx(pawl: Pawl, job: Work, tx: Tx, world: HandlerWorld): Promise<void> {
  await writeEffect(tx, job)
  if (job.kind === 'tx') {
    await pawl.jobs.enqueue('follow', { parent: job.id }, { tx })
    await appendEnded(pawl, job, tx)
  }
  await work(job, world)
}

async function appendEnded(pawl: Pawl, job: Work, tx: Tx | pg.PoolClient): Promise<void> {
  await pawl.events.append({ type: 'Ended', aggregateType: 'job', key: job.id }, { tx })
}

/** What the payload asks for, with a word before and after. */
async function work(job: Work, { say, go }: HandlerWorld): Promise<void> {
  const { id, kind, attempt, payload } = job
  say({ event: 'started', id, kind, attempt })
  if (payload.hold?.includes(attempt)) {
    say({ event: 'holding', id, kind, attempt })
    await go
  }
  if (payload.sleepMs !== undefined) await sleep(payload.sleepMs)
  if (payload.block?.includes(attempt)) block(payload.blockMs!)
  if (payload.kill?.includes(attempt)) {
    process.kill(process.pid, 'SIGKILL')
    for (;;);
  }
  if (payload.fail?.includes(attempt)) throw new Error(`It fails on attempt ${attempt}, as it was told.`)
  say({ event: 'ended', id, kind, attempt })
}

/** Synchronous work, as a parser or a cipher would do: nothing else of the process runs meanwhile. */
function block(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

async function telling(
  job: Work,
  context: JobContext,
  world: HandlerWorld,
  transaction: (client: pg.PoolClient) => Promise<void>,
): Promise<void> {
  const client = await world.effects.connect()
  try {
    await client.query('begin')
    await transaction(client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    world.say({ event: 'threw', id: job.id, code: (error as { code?: string }).code, aborted: context.signal.aborted })
    throw error
  } finally {
    client.release()
  }
}

async function writeEffect(tx: { query(text: string, values: unknown[]): Promise<unknown> }, job: Job): Promise<void> {
  await tx.query(effectSql, [job.id, job.kind, job.attempt, process.pid])
}
