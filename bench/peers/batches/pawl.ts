// Batches of Pawl with its default settings or, as the variant 'jobs', as many plain jobs.

import { type BatchKind, createPawl, type Kind, type Pawl } from 'pawl'
import pg from 'pg'
import { now, pause } from '../../harness/machine/clock.ts'
import { mark } from '../../harness/mark.ts'
import { type Peer, payloadOf, type Setup } from '../../harness/system/protocol.ts'
import { type Stoppable, startWorker } from '../worker.ts'

interface Payload {
  readonly n: number
}

/** Nothing; the same in a transaction; or never ending, one at a time. */
export type ItemHandler = 'run' | 'tx' | 'hang'

/** An allowance that no sample needs. */
const allowance = { minMs: 3_600_000 }

export const itemsOf = (count: number) =>
  Array.from({ length: count }, (_, n) => ({ key: `file-${n}`, data: payloadOf(n), units: 1 }))

export function open(_started: unknown, variant: string | undefined): Peer {
  let pawl: Pawl
  let pool: pg.Pool
  let url: string
  let worker: Stoppable | undefined
  let firstAt = 0

  const handle = () => {
    firstAt ||= now()
  }

  async function until(condition: string): Promise<void> {
    for (;;) {
      const { rows } = await pool.query<{ is_so: boolean }>(`select ${condition} as is_so -- ${mark}`)
      if (rows[0]!.is_so) return
      await pause(1)
    }
  }

  function defineBatch(handler: ItemHandler, onEnd: () => void): BatchKind<Payload> {
    const items = { run: { run: handle }, tx: { tx: handle }, hang: { run: () => new Promise(() => undefined), concurrency: 1 } }
    return pawl.batches.define<Payload>('bench', { allowance, onEnd, item: items[handler] })
  }

  /** From the call that starts it until its row says that it has ended, and until its `onEnd` is called. */
  async function throughBatch(count: number, handler: ItemHandler, concurrency: number) {
    let onEnd = () => {}
    const called = new Promise<void>((resolve) => {
      onEnd = resolve
    })
    const kind = defineBatch(handler, () => onEnd())
    worker = await startWorker(pawl, 'jobs', concurrency)
    const items = itemsOf(count)
    const from = now()
    const { id } = await pawl.batches.start(kind, items)
    const startedAt = now()
    await until(`exists (select from pawl.batch where id = ${id} and state = 'finished')`)
    const to = now()
    await called
    return { from, startedAt, firstAt, to, calledAt: now() }
  }

  /** As throughBatch, with a worker that starts when all items have jobs: another has fed them, and ran only the first. */
  async function throughFed(count: number, handler: ItemHandler, concurrency: number) {
    const feeder = createPawl({ databaseUrl: url })
    let letGo = () => {}
    const held = new Promise<void>((resolve) => {
      letGo = resolve
    })
    const kind = feeder.batches.define<Payload>('bench', { allowance, item: { run: () => held, concurrency: 1 } })
    const feeding = await startWorker(feeder, 'jobs')
    const from = now()
    const { id } = await feeder.batches.start(kind, itemsOf(count))
    const startedAt = now()
    await until(`exists (select from pawl.batch where id = ${id} and fed = total)`)
    const stopped = feeding.stop()
    letGo()
    await stopped
    await feeder.close()
    defineBatch(handler, () => undefined)
    worker = await startWorker(pawl, 'jobs', concurrency)
    await until(`exists (select from pawl.batch where id = ${id} and state = 'finished')`)
    const to = now()
    const { done, settles } = pawl.running[0]!.metrics()
    return { from, startedAt, firstAt, to, flush: done / Math.max(1, settles) }
  }

  async function throughJobs(count: number, concurrency: number) {
    const kind: Kind<Payload> = pawl.jobs.define<Payload>('bench', { run: handle })
    worker = await startWorker(pawl, 'jobs', concurrency)
    const payloads = Array.from({ length: count }, (_, n) => payloadOf(n))
    const from = now()
    await pawl.jobs.enqueueMany(kind, payloads)
    const startedAt = now()
    await until('not exists (select from pawl.job)')
    return { from, startedAt, firstAt, to: now() }
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
    through: (count: number, concurrency: number, handler: ItemHandler = 'run') =>
      variant === 'jobs' ? throughJobs(count, concurrency) : throughBatch(count, handler, concurrency),
    complete: (count: number, concurrency: number, handler: ItemHandler) => throughFed(count, handler, concurrency),
    /** Milliseconds of the start, and until all items have jobs. */
    async feed(count: number) {
      const kind = defineBatch('hang', () => undefined)
      worker = await startWorker(pawl, 'jobs')
      const items = itemsOf(count)
      const from = now()
      const { id } = await pawl.batches.start(kind, items)
      const startedAt = now()
      await until(`exists (select from pawl.batch where id = ${id} and fed = total)`)
      return { start: startedAt - from, fed: now() - from }
    },
    /** A running batch and one that waits for its track. No worker runs them. Returns the first's id. */
    async occupy(count: number) {
      defineOnce()
      const options = { track: `of ${count}`, policy: 'queue' } as const
      const { id } = await pawl.batches.start('bench', itemsOf(count), options)
      await pawl.batches.start('bench', itemsOf(1), options)
      return id
    },
    /** All but the last item have ended. */
    settle: (id: string) =>
      pool.query(
        `update pawl.batch_item i set outcome = 'done', ended_at = now() from pawl.batch b where i.batch_id = b.id and b.id = ${id} and i.n < b.total`,
      ),
    cancel: (id: string) => pawl.batches.cancel(id, { by: 'bench', reason: 'measured' }),
  }

  let isDefined = false
  function defineOnce(): void {
    if (!isDefined) defineBatch('run', () => undefined)
    isDefined = true
  }

  return {
    async prepare(setup: Setup) {
      url = setup.url
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      pool = new pg.Pool({ connectionString: url, max: 1 })
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    async close() {
      await worker?.stop({ grace: 0 })
      await pawl.close()
      await pool.end()
    },
  }
}
