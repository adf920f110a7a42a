import { type BatchReport, type ItemToRestore, type JobContext, NonRetryable } from 'pawl'
import { installProbe, moveClock, type ProbeName } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { closed, eventsOf, files, startWorker } from '../../test/support/batches.ts'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(() => db.drop())

/** Calls `act` each time the probe is hit. */
function atProbe(name: ProbeName, act: (subject: unknown) => Promise<void> | void): void {
  installProbe((hit, subject) => (hit === name ? act(subject) : undefined))
  onTestFinished(() => installProbe(undefined))
}

const act = { by: 'ada', reason: 'enough' }
const stateOf = async (id: string) =>
  (await db.query<{ state: string }>('select state from pawl.batch where id = $1', [id]))[0]!.state

test('[B3] the last two items end at once: the hook runs once', async () => {
  const ends: string[] = []
  const ran = deferred()
  let running = 0
  const pawls = [db.pawl(), db.pawl()]
  for (const pawl of pawls)
    pawl.batches.define('reparse', {
      item: {
        concurrency: 1,
        run: async () => {
          if (++running === 2) ran.resolve()
          await ran.promise
        },
      },
      onEnd: ({ id }) => void ends.push(id),
    })
  // Each waits for the other, after its settle and before its end.
  const [settled, ending] = [deferred(), deferred()]
  const arrived = { 'batches.settled': 0, 'batches.end.before': 0 }
  installProbe(async (name) => {
    if (name !== 'batches.settled' && name !== 'batches.end.before') return
    const gate = name === 'batches.settled' ? settled : ending
    if (++arrived[name] === 2) gate.resolve()
    await gate.promise
  })
  onTestFinished(() => installProbe(undefined))
  const { id } = await pawls[0]!.batches.start('reparse', files(2))
  await Promise.all(pawls.map((pawl) => startWorker(pawl, 2)))
  expect(await closed(pawls[0]!, id)).toMatchObject({ state: 'finished', counts: { done: 2 } })
  expect(arrived['batches.end.before']).toBe(2)
  expect(ends).toEqual([id])
  expect((await eventsOf(db, id)).filter((type) => type === 'batch.finished')).toHaveLength(1)
})

test('items are given back before they started: nothing is refused', async () => {
  const said: string[] = []
  const say = (_: unknown, message: string) => void said.push(message)
  const pawl = db.pawl({ logger: { debug() {}, info() {}, warn: say, error: say } })
  const go = deferred()
  // Quick ones first: a worker claims more than it runs once it knows how quick they are.
  const reparse = pawl.batches.define('reparse', { item: { run: ({ n }) => (n > 100 ? go.promise : undefined) } })
  const { id } = await pawl.batches.start(reparse, files(300))
  const worker = await startWorker(pawl, 5)
  await until('some are given back', () => worker.metrics().released > 0)
  go.resolve()
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 300 } })
  expect(worker.metrics().refused).toBe(0)
  expect(await db.query('select what, detail from pawl.refusal')).toEqual([])
  expect(said).toEqual([])
})

test('[B3] after a crash before the end the watch ends it', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  let lost = 0
  atProbe('batches.settled', () => {
    lost++
    throw new Error('the process died here')
  })
  const { id } = await pawl.batches.start(reparse, files(3))
  await startWorker(pawl)
  await until('all items are done', async () => (await pawl.batches.get(id)).counts.done === 3)
  await until('nothing inspects it', () => lost > 0)
  expect(await stateOf(id)).toBe('running')
  installProbe(undefined)
  await moveClock(db.pool, 16_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 3 } })
})

test.each(['run', 'tx'] as const)('[B5] with 3 zombies of %s the next batch starts', async (shape) => {
  const pawl = db.pawl()
  await db.query('create table effect (batch text, n integer)')
  const free = deferred()
  let blocked = 0
  const work = async (item: { batch: string; n: number }, tx?: { query(text: string, values: unknown[]): Promise<unknown> }) => {
    await tx?.query('insert into effect values ($1, $2)', [item.batch, item.n])
    if (item.batch !== first.id || item.n > 3) return { records: 1 }
    blocked++
    await free.promise
    return { records: 100 }
  }
  const reparse = pawl.batches.define('reparse', {
    item: shape === 'run' ? { run: (item) => work(item) } : { tx: (item, tx) => work(item, tx) },
  })
  const first = await pawl.batches.start(reparse, files(5))
  await startWorker(pawl)
  await until(
    'three hang and the others are done',
    async () => blocked === 3 && (await pawl.batches.get(first.id)).counts.done === 2,
  )
  // No look of the worker comes first: whether zombies are aborted is shown with jobs.
  await moveClock(db.pool, 51_000)
  const second = await pawl.batches.start(reparse, files(4))
  expect(second.state).toBe('running')
  expect(await stateOf(first.id)).toBe('timed-out')
  free.resolve()
  expect(await closed(pawl, second.id)).toMatchObject({ state: 'finished', counts: { done: 4, late: 0 }, sums: { records: 4 } })
  if (shape === 'run') await until('the late ones are named', async () => (await pawl.batches.get(first.id)).counts.late === 3)
  const batch = await closed(pawl, first.id)
  expect(batch).toMatchObject({ state: 'timed-out', counts: { done: 2, waiting: 3 }, sums: { records: 2 } })
  if (shape === 'tx')
    expect(await db.query('select count(*)::integer from effect where batch = $1 and n <= 3', [first.id])).toEqual([{ count: 0 }])
  expect(await db.query("select from pawl.job where kind = 'pawl.batch.reparse.item'")).toEqual([])
  await until(
    'the evidence is kept',
    async () => (await db.query('select from pawl.refusal')).length >= (shape === 'run' ? 3 : 0),
  )
})

test.each(['run', 'tx'] as const)('[B5] %s zombies that answer after the clearing are named', async (shape) => {
  const pawl = db.pawl()
  const [reached, aborted, go] = [deferred(), deferred(), deferred()]
  const work = async ({ n }: { n: number }, { signal }: JobContext) => {
    if (n === 1) return
    signal.addEventListener('abort', () => aborted.resolve())
    reached.resolve()
    await go.promise
  }
  const reparse = pawl.batches.define('reparse', {
    item: shape === 'run' ? { run: work } : { tx: (item, _tx, context) => work(item, context) },
  })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  await reached.promise
  await until('the other is done', async () => (await pawl.batches.get(id)).counts.done === 1)
  await moveClock(db.pool, 3_600_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'timed-out', counts: { done: 1, waiting: 1, late: 0 } })
  // The worker knows now that the job is cancelled, and sends no result.
  await aborted.promise
  go.resolve()
  await until('it is named', async () => (await pawl.batches.get(id)).counts.late === 1)
  expect((await pawl.batches.items(id, { outcome: 'late' })).items).toMatchObject([{ key: 'file-2', outcome: null }])
})

test('[B5] a settle after the deadline is late, one before it counts', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => ({ records: 1 }) } })
  const { id } = await pawl.batches.start(reparse, files(1))
  const [reached, go] = [deferred(), deferred()]
  atProbe('jobs.settle.before', async (subject) => {
    if ((subject as { attempt: { kind: string } }[])[0]!.attempt.kind !== 'pawl.batch.reparse.item') return
    reached.resolve()
    await go.promise
  })
  await startWorker(pawl)
  await reached.promise
  expect(await pawl.batches.cancel(id, act)).toEqual({ state: 'cancelled' })
  go.resolve()
  await until('it is late', async () => (await pawl.batches.get(id)).counts.late === 1)
  expect(await closed(pawl, id)).toMatchObject({
    state: 'cancelled',
    endReason: 'enough',
    counts: { done: 0, late: 1 },
    sums: {},
  })
  expect((await pawl.batches.items(id, { outcome: 'late' })).items).toMatchObject([{ key: 'file-1', outcome: null }])
})

test('[B5] all items ended before the time-out: it is finished', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(2))
  atProbe('batches.settled', () => {
    throw new Error('the end is left to others')
  })
  await startWorker(pawl)
  await until('all are done', async () => (await pawl.batches.get(id)).counts.done === 2)
  await moveClock(db.pool, 3_600_000)
  await pawl.batches.start(reparse, files(1))
  expect(await stateOf(id)).toBe('finished')
})

test('[B5] an open guard keeps its batch from ending', async () => {
  const pawl = db.pawl()
  const [held, go] = [deferred(), deferred()]
  const outcome = deferred<unknown>()
  const reparse = pawl.batches.define('reparse', {
    item: {
      run: async (item) => {
        const client = await db.pool.connect()
        try {
          await client.query("begin; set local application_name = 'editor'")
          await item.guard(client)
          held.resolve()
          await go.promise
          await client.query('commit')
          await until('the batch has ended', async () => (await stateOf(item.batch)) === 'cancelled')
          await client.query('begin')
          outcome.resolve(await item.guard(client).catch((error: unknown) => error))
          await client.query('rollback')
        } finally {
          client.release()
        }
      },
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await held.promise
  await expect(pawl.batches.cancel(id, act)).rejects.toMatchObject({
    code: 'PAWL_TRACK_BUSY',
    message: expect.stringMatching(/because an open transaction holds it: pid \d+ \(editor\)\. Try again/),
    details: { retryAfterMs: 1000 },
  })
  await expect(pawl.batches.start(reparse, files(1), { policy: 'replace' })).rejects.toMatchObject({ details: { blocker: id } })
  go.resolve()
  await until('it can end', () => pawl.batches.cancel(id, act).catch(() => undefined))
  expect(await outcome.promise).toMatchObject({ code: 'PAWL_LEASE_LOST' })
})

test('[B5] guard and complete after the signal reject with PAWL_LEASE_LOST', async () => {
  const pawl = db.pawl()
  const started = deferred()
  const errors = deferred<unknown[]>()
  const reparse = pawl.batches.define('reparse', {
    item: {
      run: async (item, { signal }) => {
        started.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        const client = await db.pool.connect()
        await client.query('begin')
        const calls = [item.guard(client), item.complete(client)].map((call) => call.catch((error: unknown) => error))
        errors.resolve(await Promise.all(calls))
        await client.query('rollback')
        client.release()
      },
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await started.promise
  await pawl.batches.cancel(id, act)
  expect(await errors.promise).toMatchObject([{ code: 'PAWL_LEASE_LOST' }, { code: 'PAWL_LEASE_LOST' }])
})

test.each(['repeatable read', 'serializable'])('[B5] a tx item at %s commits nothing after the end', async (level) => {
  const pawl = db.pawl()
  await db.query('create table effect (n integer)')
  const [reached, go] = [deferred(), deferred()]
  const reparse = pawl.batches.define('reparse', {
    item: {
      tx: async ({ n }, tx) => {
        await tx.query(`set transaction isolation level ${level}`)
        await tx.query('insert into effect values ($1)', [n])
        reached.resolve()
        await go.promise
      },
    },
  })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await reached.promise
  // The job stays: only the batch refuses.
  await db.query("update pawl.batch set state = 'cancelled', ended_at = pawl.now(), closed_at = pawl.now() where id = $1", [id])
  go.resolve()
  await until('it is late', async () => (await pawl.batches.get(id)).counts.late === 1)
  expect(await db.query('select from effect')).toEqual([])
})

test('[B6] an end before the boundary restores each item once', async () => {
  const pawl = db.pawl()
  await db.query('create table file (key text primary key, state text, restored integer not null default 0)')
  await db.query("insert into file select 'file-' || g, 'requested' from generate_series(1, 250) g")
  await db.query("update file set state = 'moved on' where key = 'file-7'")
  const seen: BatchReport[] = []
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    prepare: () => {
      throw new Error('no backup')
    },
    boundary: (_, tx) => tx.query('delete from file'),
    restore: async (items: readonly ItemToRestore[], tx) => {
      for (const { key, before } of items)
        await tx.query("update file set state = $2, restored = restored + 1 where key = $1 and state = 'requested'", [
          key,
          before,
        ])
    },
    onEnd: (batch) => void seen.push(batch),
  })
  const { id } = await pawl.batches.start(reparse, files(250, { before: 'parsed' }))
  await startWorker(pawl)
  await until('prepare has failed', async () => (await db.query('select from pawl.job_attempt')).length > 0)
  await pawl.batches.cancel(id, act)
  await closed(pawl, id)
  expect(await db.query('select state, restored, count(*)::integer from file group by 1, 2 order by 1')).toEqual([
    { state: 'moved on', restored: 0, count: 1 },
    { state: 'parsed', restored: 1, count: 249 },
  ])
  expect(seen).toMatchObject([{ state: 'cancelled', boundaryAt: null, counts: { waiting: 250, restored: 250 } }])
  expect((await pawl.batches.why(id)).reasons.at(-1)!.text).toBe('It ended before its boundary; 250 items were restored.')
  expect(await db.query('select count(*)::integer from pawl.batch_item where restored_at is not null')).toEqual([{ count: 250 }])
})

test('[B6] a step that is dead fails the batch', async () => {
  const pawl = db.pawl()
  const restored: string[] = []
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    boundary: () => ({ records: Number.NaN }),
    restore: (items) => void restored.push(...items.map(({ key }) => key)),
  })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({
    state: 'failed',
    endReason: expect.stringMatching(/The boundary of 'reparse' must return numbers .*: 'records' is NaN/),
  })
  expect(restored).toEqual(['file-1', 'file-2'])
  expect(await db.query("select from pawl.job where state = 'dead'")).toEqual([])
})

test.each([
  [{ records: '5' }, "'records' is '5' (pg gives count(*) as a string: Number(...))."],
  [{ ok: 1, records: Number.NaN }, "'records' is NaN."],
  [[1], 'it returned an array.'],
  [Object.fromEntries(Array.from({ length: 21 }, (_, n) => [`f${n}`, n])), 'it returned 21 names.'],
])('an item that returns %o fails with its field and value', async (sums, fault) => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => sums } })
  const { id } = await pawl.batches.start(reparse, files(1))
  await startWorker(pawl)
  await closed(pawl, id)
  const { items } = await pawl.batches.items(id)
  expect(items[0]!.error).toContain(`Item 'file-1' of 'reparse' must return numbers by name, at most 20, or nothing: ${fault}`)
})

test('[B6] after the boundary nothing is reverted', async () => {
  const pawl = db.pawl()
  let restored = 0
  const hang = deferred()
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => hang.promise },
    prepare: () => ({ backup: 's3://1' }),
    boundary: ({ prepared }) => ({ deleted: (prepared as { backup: string }).backup.length }),
    restore: () => void restored++,
  })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  await until(
    'items run',
    async () => (await db.query("select from pawl.job where state = 'running' and kind like '%.item'")).length === 2,
  )
  await pawl.batches.cancel(id, act)
  hang.resolve()
  const batch = await closed(pawl, id)
  expect(batch).toMatchObject({
    state: 'cancelled',
    prepared: { backup: 's3://1' },
    sums: { deleted: 6 },
    counts: { restored: 0 },
  })
  expect((await pawl.batches.why(id)).reasons.at(-1)!.text).toBe(
    `It crossed its boundary at ${batch.boundaryAt!.toISOString()}; nothing is reverted.`,
  )
  expect((await pawl.batches.list()).items).toMatchObject([{ boundaryAt: batch.boundaryAt }])
  expect(restored).toBe(0)
})

test('[B6] a time-out waits for a boundary in progress', async () => {
  const pawl = db.pawl()
  const [reached, go] = [deferred(), deferred()]
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined }, boundary: () => ({ deleted: 1 }) })
  const { id } = await pawl.batches.start(reparse, files(1))
  atProbe('batches.boundary.written', async () => {
    reached.resolve()
    await go.promise
  })
  await startWorker(pawl)
  await reached.promise
  await moveClock(db.pool, 60_000)
  await expect(pawl.batches.start(reparse, files(1))).rejects.toMatchObject({ code: 'PAWL_TRACK_BUSY', details: { blocker: id } })
  go.resolve()
  expect(await closed(pawl, id)).toMatchObject({ state: expect.stringMatching(/finished|timed-out/), sums: { deleted: 1 } })
})

test('an item whose job SQL cancelled has failed', async () => {
  const pawl = db.pawl()
  const hang = deferred()
  const reparse = pawl.batches.define('reparse', { item: { run: ({ n }) => (n === 1 ? hang.promise : undefined) } })
  const { id } = await pawl.batches.start(reparse, files(3), { units: 1_000_000 })
  await startWorker(pawl)
  await until('two are done', async () => (await pawl.batches.get(id)).counts.done === 2)
  await db.query("select pawl.cancel_jobs('', array(select id from pawl.job where kind like '%.item'))")
  await moveClock(db.pool, 16_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', isSuccess: false, counts: { done: 2, failed: 1 } })
  expect((await pawl.batches.items(id, { outcome: 'failed' })).items).toMatchObject([{ n: 1, error: 'its job was cancelled' }])
  hang.resolve()
})

test('an item that times out for the last time has failed', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', {
    item: { timeout: 1000, retry: { attempts: 1 }, run: ({ n }) => (n === 1 ? new Promise(() => undefined) : undefined) },
  })
  const { id } = await pawl.batches.start(reparse, files(2))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 1, failed: 1 } })
})

test('an item whose job a sweep declared dead has failed', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(2), { units: 1_000_000 })
  const worker = await startWorker(pawl)
  const [reached, go] = [deferred(), deferred()]
  atProbe('jobs.settle.before', async (subject) => {
    if (!(subject as { attempt: { kind: string } }[])[0]!.attempt.kind.endsWith('.item')) return
    reached.resolve()
    await go.promise
  })
  await reached.promise
  await db.query(
    "update pawl.job set state = 'dead', fence = fence + 1, holder = null, run_until = null, claimed_at = null, last_error = 'killed' where kind like '%.item'",
  )
  go.resolve()
  await moveClock(db.pool, 16_000)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', counts: { done: 0, failed: 2 } })
  expect((await pawl.batches.items(id)).items[0]).toMatchObject({ error: 'killed' })
  expect(await db.query('select from pawl.job')).toHaveLength(1)
  expect(worker.metrics().refused).toBe(2)
})

test.each(['batches.start.inserted', 'batches.start.items', 'batches.start.written'] as const)(
  '[B7] a starter that dies at %s leaves nothing',
  async (point) => {
    const pawl = db.pawl()
    const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
    atProbe(point, () => {
      throw new Error('the starter died')
    })
    await expect(pawl.batches.start(reparse, files(3))).rejects.toThrow('the starter died')
    installProbe(undefined)
    expect(await db.query('select from pawl.batch')).toEqual([])
    const { id } = await pawl.batches.start(reparse, files(3))
    await startWorker(pawl)
    expect(await closed(pawl, id)).toMatchObject({ state: 'finished' })
  },
)

test('[B8] 64 at once on one batch: no deadlock, counts exact', async () => {
  const pawl = db.pawl()
  await db.query('create table tally (n integer)')
  const reparse = pawl.batches.define('reparse', {
    item: { tx: ({ n }, tx) => tx.query('insert into tally values ($1)', [n]).then(() => ({ ones: 1 })) },
  })
  const { id } = await pawl.batches.start(reparse, files(300))
  await startWorker(pawl, 64)
  expect(await closed(pawl, id)).toMatchObject({ state: 'finished', isSuccess: true, counts: { done: 300 }, sums: { ones: 300 } })
  expect(await db.query('select count(*)::integer from tally')).toEqual([{ count: 300 }])
  expect(await db.query('select deadlocks::integer from pg_stat_database where datname = current_database()')).toEqual([
    { deadlocks: 0 },
  ])
})

test('[B9] stuck lists the latest unfinished item of each key', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const keys = async (options = {}) => (await pawl.batches.stuck(options)).items.map(({ key }) => key)
  const first = await pawl.batches.start(reparse, files(2))
  expect(await keys()).toEqual([])
  await moveClock(db.pool, 60_000)
  expect(await keys()).toEqual(['file-1', 'file-2'])
  expect(await keys({ olderThan: '5m' })).toEqual([])
  expect(await keys({ name: 'other' })).toEqual([])
  const second = await pawl.batches.start(reparse, files(1))
  expect(await keys()).toEqual(['file-2'])
  await pawl.batches.cancel(second.id, act)
  expect((await pawl.batches.stuck()).items.map(({ batch, key }) => [batch, key])).toEqual([
    [second.id, 'file-1'],
    [first.id, 'file-2'],
  ])
  const page = await pawl.batches.stuck({ limit: 1 })
  expect(await keys({ after: page.next, limit: 1 })).toEqual(['file-2'])
  const third = await pawl.batches.rerun(second.id)
  await startWorker(pawl)
  await closed(pawl, third.id)
  expect(await keys()).toEqual(['file-2'])
})

test('a rerun has the failed and unfinished items', async () => {
  const pawl = db.pawl()
  let isBroken = true
  const reparse = pawl.batches.define('reparse', {
    item: {
      retry: { attempts: 1 },
      run: ({ n }) => {
        if (isBroken && n === 2) throw new Error('broken')
      },
    },
  })
  const first = await pawl.batches.start(reparse, files(3, { units: 10 }), { meta: { why: 'x' }, units: 7 })
  await expect(pawl.batches.rerun(first.id)).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
  await startWorker(pawl)
  await closed(pawl, first.id)
  isBroken = false
  const { id } = await pawl.batches.rerun(first.id, { only: 'failed', by: 'ada' })
  const batch = await closed(pawl, id)
  expect(batch).toMatchObject({
    isSuccess: true,
    rerunOf: first.id,
    by: 'ada',
    meta: { why: 'x' },
    units: 17,
    counts: { total: 1 },
  })
  expect((await pawl.batches.items(id)).items).toMatchObject([{ n: 1, key: 'file-2', data: { path: '/2' } }])
})

test('a second rerun leaves out what a later batch has done', async () => {
  const pawl = db.pawl()
  let broken = [1, 2, 3]
  const reparse = pawl.batches.define('reparse', {
    item: {
      retry: { attempts: 1 },
      run: ({ key }) => {
        if (broken.some((n) => key === `file-${n}`)) throw new Error('broken')
      },
    },
  })
  const other = pawl.batches.define('other', { item: { run: () => undefined } })
  const first = await pawl.batches.start(reparse, files(3, { units: 10 }), { units: 7 })
  await startWorker(pawl)
  await closed(pawl, first.id)
  await closed(pawl, (await pawl.batches.start(other, files(3))).id)
  broken = [3]
  expect(await closed(pawl, (await pawl.batches.rerun(first.id)).id)).toMatchObject({ counts: { done: 2, failed: 1 }, units: 37 })
  broken = []
  expect(await closed(pawl, (await pawl.batches.rerun(first.id)).id)).toMatchObject({ counts: { total: 1, done: 1 }, units: 17 })
  await expect(pawl.batches.rerun(first.id)).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(/has nothing to run again: it has no failed or unfinished item whose key no later batch/),
  })
  expect((await pawl.batches.list({ name: 'reparse' })).items).toHaveLength(3)
})

test('the last page has no next, also when it is full', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(2))
  expect(await pawl.batches.items(id, { limit: 2 })).toMatchObject({ items: [{ n: 1 }, { n: 2 }], next: null })
  expect(await pawl.batches.items(id, { limit: 1 })).toMatchObject({ items: [{ n: 1 }], next: '1' })
  expect(await pawl.batches.list({ limit: 1 })).toMatchObject({ items: [{ id }], next: null })
  await pawl.batches.cancel(id, act)
  expect(await pawl.batches.stuck({ limit: 2 })).toMatchObject({ items: [{ n: 1 }, { n: 2 }], next: null })
})

test('why of an overdue batch says that its deadline passed', async () => {
  const [starter, pawl] = [db.pawl(), db.pawl()]
  const reparse = starter.batches.define('reparse', { item: { run: () => undefined } })
  const { id, deadline } = await starter.batches.start(reparse, files(1))
  // It would poll, and end the batch.
  await starter.close()
  const text = async () => (await pawl.batches.why(id)).reasons[0]!.text
  expect(await text()).toBe(`1 of 1 item has not ended. It times out at ${deadline!.toISOString()}.`)
  await moveClock(db.pool, 60_000)
  expect(await text()).toContain(`Its deadline passed at ${deadline!.toISOString()}`)
})

test('an extended batch has more time; who extended it is kept', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id, deadline } = await pawl.batches.start(reparse, files(1))
  const extended = await pawl.batches.extend(id, { for: '1m', ...act })
  expect(extended.deadline.getTime()).toBe(deadline!.getTime() + 60_000)
  await moveClock(db.pool, 30_000)
  await expect(pawl.batches.start(reparse, files(1))).rejects.toMatchObject({ code: 'PAWL_TRACK_BUSY' })
  expect(await db.query('select actor, action, reason from pawl.audit')).toEqual([
    { actor: 'ada', action: 'batch.extend', reason: 'enough' },
  ])
  await pawl.batches.cancel(id, act)
  await expect(pawl.batches.extend(id, { for: 1, ...act })).rejects.toMatchObject({ code: 'PAWL_WRONG_STATE' })
})

test('a closed batch is removed after 30 days', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => undefined } })
  const { id } = await pawl.batches.start(reparse, files(3))
  await startWorker(pawl)
  await closed(pawl, id)
  const days = 'extract(day from run_at - created_at)::integer as days'
  const [removal] = await db.query<{ id: string; days: number }>(
    `select id, ${days} from pawl.job where kind = 'pawl.batch.remove'`,
  )
  expect(removal!.days).toBe(30)
  await db.query("update pawl.job set state = 'ready', run_at = pawl.now(), due = pawl.now() where id = $1", [removal!.id])
  await db.query("select pawl.wake('default')")
  await until('it is gone', async () => (await db.query('select from pawl.batch')).length === 0)
  expect(await db.query('select from pawl.batch_item')).toEqual([])
})

test('[B6] prepare fails for the last time: each item is restored once', async () => {
  const pawl = db.pawl()
  await db.query(
    "create table file as select 'file-' || g as key, 'requested' as state, 0 as restored from generate_series(1, 120) g",
  )
  await db.query("update file set state = 'moved on' where key = 'file-7'")
  const reparse = pawl.batches.define('reparse', {
    item: { run: () => undefined },
    prepare: () => {
      throw new NonRetryable('no backup')
    },
    restore: async (items: readonly ItemToRestore[], tx) => {
      for (const { key, before } of items)
        await tx.query("update file set state = $2, restored = restored + 1 where key = $1 and state = 'requested'", [
          key,
          before,
        ])
    },
  })
  const { id } = await pawl.batches.start(reparse, files(120, { before: 'parsed' }))
  await startWorker(pawl)
  expect(await closed(pawl, id)).toMatchObject({ state: 'failed', endReason: expect.stringMatching(/no backup/) })
  expect(await db.query('select state, restored, count(*)::integer from file group by 1, 2 order by 1')).toEqual([
    { state: 'moved on', restored: 0, count: 1 },
    { state: 'parsed', restored: 1, count: 119 },
  ])
  expect(await db.query("select from pawl.job where state = 'dead'")).toEqual([])
})

test('[B5] a minute past its deadline an alert names the blocking session', async () => {
  const pawl = db.pawl()
  const reparse = pawl.batches.define('reparse', { item: { run: () => new Promise(() => undefined), timeout: '1s' } })
  const { id } = await pawl.batches.start(reparse, files(1))
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await client.query("select pg_advisory_xact_lock_shared(pawl.batch_lock('', $1))", [id])
    const [{ pid }] = (await client.query<{ pid: number }>('select pg_backend_pid() as pid')).rows as [{ pid: number }]
    await moveClock(db.pool, 3_600_000)
    await startWorker(pawl)
    const [alert] = await until(
      'the alert is raised',
      () => pawl.alerts(),
      (alerts) => alerts.some(({ code }) => code === 'batch.blocked'),
    ).then((alerts) => alerts.filter(({ code }) => code === 'batch.blocked'))
    expect(alert).toMatchObject({ subject: id, message: expect.stringContaining(`pid ${pid}`) })
    await client.query('commit')
  } finally {
    client.release()
  }
  await until('it has ended', async () => (await stateOf(id)) === 'timed-out')
})
