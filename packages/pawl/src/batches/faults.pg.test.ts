import { type BatchOptions, NonRetryable, type Pawl } from 'pawl'
import { installProbe, moveClock, runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { closed, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  installProbe(undefined)
  await db.drop()
})

const act = { by: 'ada', reason: 'enough' }

test('[B5] all slots hang: the deadline ends the batch all the same', async () => {
  const pawl = db.pawl()
  const hung = deferred()
  let running = 0
  const reparse = pawl.batches.define('reparse', {
    policy: 'queue',
    item: {
      run: async (_, { signal }) => {
        if (++running === 2) hung.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
      },
    },
  })
  const first = await pawl.batches.start(reparse, files(4))
  const second = await pawl.batches.start(reparse, [])
  await startWorker(pawl, 2)
  await hung.promise
  await moveClock(db.pool, 51_000)
  expect(await closed(pawl, first.id)).toMatchObject({ state: 'timed-out', counts: { done: 0, waiting: 4 } })
  expect(await closed(pawl, second.id)).toMatchObject({ state: 'finished' })
})

test('SQL cancels the job of an end: it runs again', async () => {
  const pawl = db.pawl()
  const ended = deferred()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined }, onEnd: () => ended.resolve() })
  const { id } = await pawl.batches.start(reparse, files(1))
  await pawl.batches.cancel(id, act)
  await db.query("select pawl.cancel_jobs('', array(select id from pawl.job where kind = 'pawl.batch.reparse.end'))")
  await startWorker(pawl)
  await ended.promise
  expect(await closed(pawl, id)).toMatchObject({ state: 'cancelled' })
})

/** Items that guard for more than 250 ms, one always begun before the last ends. Resolves when two hold the batch. */
function overlapping(pawl: Pawl, options: Partial<BatchOptions> = {}) {
  const held = deferred()
  let holders = 0
  const batch = pawl.batches.define('reparse', {
    allowance: { perItemMs: 0, minMs: 60_000 },
    ...options,
    item: {
      run: async (item) => {
        const client = await db.pool.connect()
        try {
          await client.query('begin')
          await item.guard(client)
          if (++holders === 2) held.resolve()
          await client.query('select pg_sleep(0.3 + 0.1 * ($1::integer % 3))', [item.n])
          await client.query('commit')
        } catch (error) {
          await client.query('rollback')
          throw error
        } finally {
          client.release()
        }
      },
    },
  })
  return { batch, held: held.promise }
}

test('[B5] guards that overlap do not keep a batch from its deadline', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const { id } = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  await moveClock(db.pool, 61_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'timed-out' })
})

test('guards that overlap do not keep a cancel waiting', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const { id } = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  expect(await pawl.batches.cancel(id, act)).toEqual({ state: 'cancelled' })
})

test('guards that overlap do not keep a replacement waiting', async () => {
  const pawl = db.pawl()
  const { batch, held } = overlapping(pawl)
  const first = await pawl.batches.start(batch, files(200))
  await startWorker(pawl, 6)
  await held
  expect(await pawl.batches.start(batch, [], { policy: 'replace' })).toMatchObject({ state: 'finished' })
  expect(await pawl.batches.get(first.id)).toMatchObject({ state: 'replaced' })
})

test('onEnd throws NonRetryable: it runs again', async () => {
  const pawl = db.pawl()
  let ends = 0
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    onEnd: () => {
      if (++ends === 1) throw new NonRetryable('not now')
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished' })
  expect(ends).toBe(2)
})

test('an item returns numbers that JSON makes strings: it fails', async () => {
  const pawl = db.pawl()
  class Money {
    readonly eur = 1
    toJSON() {
      return { eur: '1.00' }
    }
  }
  const reparse = pawl.batches.define('reparse', { item: { run: ({ n }) => (n === 1 ? new Money() : { eur: 2 }) } })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 1, failed: 1 }, sums: { eur: 2 } })
})

test('a refused start keeps what it did for its track', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const first = await pawl.batches.start(reparse, files(1))
  const second = await pawl.batches.start(reparse, files(1), { policy: 'queue' })
  await moveClock(db.pool, 61_000)
  await expect(pawl.batches.start(reparse, files(1))).rejects.toMatchObject({ details: { blocker: second.id } })
  expect(await pawl.batches.get(first.id)).toMatchObject({ state: 'timed-out' })
  expect(await pawl.batches.get(second.id)).toMatchObject({ state: 'running' })
})

test("a refused start in a caller's transaction locks nothing", async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(1))
  await moveClock(db.pool, 61_000)
  const [holder, caller] = [await db.pool.connect(), await db.pool.connect()]
  await holder.query('begin')
  await holder.query("select pg_advisory_xact_lock_shared(pawl.batch_lock('', $1))", [id])
  await caller.query('begin')
  const error = await pawl.batches.start(reparse, files(1), { tx: caller }).catch((thrown) => thrown)
  expect(error).toMatchObject({ code: 'PAWL_TRACK_BUSY', details: { blocker: id, retryAfterMs: 1000 } })
  expect(error.details.deadline).toBeInstanceOf(Date)
  expect(error.message).toContain(`batch ${id} `)
  const locks = await caller.query("select from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'")
  expect(locks.rowCount).toBe(0)
  await holder.query('rollback')
  expect(await pawl.batches.cancel(id, act)).toEqual({ state: 'cancelled' })
  await caller.query('commit')
  for (const client of [holder, caller]) client.release()
  expect(await db.query('select from pawl.batch')).toHaveLength(1)
})

test("a caller's transaction that queued a batch may idle 30 s", async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { policy: 'queue', item: { run: () => undefined } })
  const caller = await db.pool.connect()
  await caller.query('begin')
  await pawl.batches.start(reparse, files(1), { tx: caller })
  const { rows } = await caller.query('show idle_in_transaction_session_timeout')
  await caller.query('rollback')
  caller.release()
  expect(rows).toEqual([{ idle_in_transaction_session_timeout: '30s' }])
})

test('a feed takes 16 MB of data however well it compresses', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(20))
  await db.query("update pawl.batch_item set data = to_jsonb(repeat('x', 1048574))")
  await db.query('update pawl.batch set boundary_at = pawl.now()')
  await db.query("select pawl.feed_batch('', id, fence) from pawl.batch")
  expect(await db.query('select id, fed from pawl.batch')).toEqual([{ id, fed: 16 }])
})

test('a start sends large items in several statements', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  await pawl.batches.start(reparse, files(20, { data: 'x'.repeat(960_000) }))
  expect(await db.query('select count(distinct cmin::text)::integer as sent, max(n) as last from pawl.batch_item')).toEqual([
    { sent: 2, last: 20 },
  ])
})

test('a cancel in prepare aborts its signal', async () => {
  const pawl = db.pawl()
  const [reached, aborted] = [deferred(), deferred()]
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    prepare: (_, { signal }) => {
      signal.addEventListener('abort', () => aborted.resolve())
      reached.resolve()
      return aborted.promise
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await reached.promise
  await pawl.batches.cancel(id, act)
  await aborted.promise
  expect(await closed(pawl, id)).toMatchObject({ state: 'cancelled' })
})

test('an extend while the boundary runs is refused as busy', async () => {
  const pawl = db.pawl()
  const [reached, go] = [deferred(), deferred()]
  const boundary = async () => {
    reached.resolve()
    await go.promise
  }
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined }, boundary })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await reached.promise
  await expect(pawl.batches.extend(id, { for: 1000, ...act })).rejects.toMatchObject({ code: 'PAWL_TRACK_BUSY' })
  go.resolve()
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished' })
})

test('a second cancel is refused, and kept from the audit', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(1))
  await pawl.batches.cancel(id, act)
  await expect(pawl.batches.cancel(id, act)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringContaining(`is cancelled and cannot be cancelled. Nothing is left to do; batches.rerun('${id}')`),
  })
  expect(await db.query('select from pawl.audit')).toHaveLength(1)
})

test('a cancel that waited for another one is refused', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(1))
  const first = await db.pool.connect()
  await first.query('begin')
  await first.query("select pawl.end_batch('', $1, 'cancelled', 'first')", [id])
  const second = pawl.batches.cancel(id, act).catch((error: unknown) => error)
  const waiting =
    "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'"
  await until('it waits', async () => (await db.query(waiting)).length > 0)
  await first.query('commit')
  first.release()
  expect(await second).toMatchObject({ code: 'PAWL_WRONG_STATE', details: { state: 'cancelled' } })
  expect(await pawl.batches.get(id)).toMatchObject({ endReason: 'first' })
  expect(await db.query('select from pawl.audit')).toEqual([])
})

test('a cancel of a batch whose items have ended finishes it', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(1))
  await db.query("update pawl.batch_item set outcome = 'done', ended_at = pawl.now()")
  expect(await pawl.batches.cancel(id, act)).toEqual({ state: 'finished' })
  expect(await pawl.batches.get(id)).toMatchObject({ state: 'finished', endReason: null })
  expect((await pawl.batches.why(id)).reasons[0]!.text).toMatch(/^It finished at [^ ]+Z\.$/)
})

test('why tells how a batch ended, in one sentence', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    prepare: () => {
      throw new NonRetryable('The disk is full.')
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({
    endReason: expect.stringMatching(/^its step 'prepare' is dead: NonRetryable: The disk is full/),
  })
  expect((await pawl.batches.why(id)).reasons[0]!.text).toMatch(
    /^It failed at [^ ]+Z: its step 'prepare' is dead: NonRetryable: The disk is full\.$/,
  )
  const other = await pawl.batches.start(reparse, files(1))
  await pawl.batches.cancel(other.id, { by: 'ada', reason: 'The wrong files.' })
  expect((await pawl.batches.why(other.id)).reasons[0]!.text).toMatch(/^It was cancelled at [^ ]+Z: The wrong files\.$/)
})

test('an attempt hangs and its retry is done: the batch finishes', async () => {
  const pawl = db.pawl()
  const hung = deferred()
  const reparse = pawl.batches.define('reparse', {
    item: { timeout: 100, retry: { initialMs: 10 }, run: ({ attempt }) => (attempt === 1 ? hung.promise : undefined) },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  expect(await closed(pawl, id, 5000)).toMatchObject({ state: 'finished', counts: { done: 1 } })
  hung.resolve()
})

test('a cursor beyond its type is refused', async () => {
  const pawl = db.pawl()
  const refusal = { code: 'PAWL_CONFIG' }
  await expect(pawl.batches.list({ after: '9999999999999999999' })).rejects.toMatchObject(refusal)
  await expect(pawl.batches.items('1', { after: '9999999999' })).rejects.toMatchObject(refusal)
  await expect(pawl.batches.stuck({ after: '1.9999999999' })).rejects.toMatchObject(refusal)
})

test('a hundred items that fail together ask for few checks', async () => {
  const pawl = db.pawl()
  const fail = () => {
    throw new NonRetryable('broken')
  }
  const reparse = pawl.batches.define('reparse', { item: { run: fail } })
  let checks = 0
  installProbe((name) => {
    if (name === 'batches.watch.lost') checks++
  })
  const { id } = await pawl.batches.start(reparse, files(100))
  await startWorker(pawl, 50)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { failed: 100 } })
  expect(checks).toBeLessThan(50)
})

test('runAll runs a batch to its onEnd', async () => {
  const pawl = db.pawl()
  const ended: string[] = []
  const onEnd: BatchOptions['onEnd'] = ({ id, state }) => void ended.push(`${id} ${state}`)
  const fine = pawl.batches.define('fine', { item: { run: () => undefined }, onEnd })
  const dead = pawl.batches.define('dead', {
    item: { run: () => undefined },
    boundary: () => {
      throw new NonRetryable('broken')
    },
    onEnd,
  })
  const { id } = await pawl.batches.start(fine, files(3))
  await runAll(pawl)
  expect(ended).toEqual([`${id} finished`])
  const other = await pawl.batches.start(dead, files(3))
  await runAll(pawl)
  expect(ended).toEqual([`${id} finished`, `${other.id} failed`])
})

test('a step that dies while its batch is cancelled leaves no job', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(1))
  const settling = await db.pool.connect()
  await settling.query('begin')
  await settling.query("update pawl.job set state = 'dead', last_error = 'broken' where kind = 'pawl.batch.reparse.step'")
  await pawl.batches.cancel(id, act)
  await settling.query('commit')
  settling.release()
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'cancelled' })
  expect(await db.query("select kind from pawl.job where kind <> 'pawl.batch.remove' and kind <> 'pawl.batch.watch'")).toEqual([])
})
