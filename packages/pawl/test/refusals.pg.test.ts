// What a call meets before it can do anything: a Pawl that was closed, a database without the schema, declared tables that do not exist.

import { type AnyTx, once, type Pawl } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from './support/database.ts'
import { pawlOfNowhere } from './support/nowhere.ts'
import { createLog } from './support/projections.ts'
import { loads } from './support/records.ts'

async function database(options: { isEmpty?: boolean } = {}): Promise<TestDatabase> {
  const db = await createDatabase(options)
  onTestFinished(() => db.drop())
  return db
}

const act = { reason: 'a test' }
const event = { type: 'Added', aggregateType: 'wallet', key: 'a', data: 1 }

/** One call of every kind of access to the database. */
function callsOf(pawl: Pawl): Record<string, () => Promise<unknown>> {
  const scope = pawl.records.in('loads', { organisation: '1', registration: '2' })
  return {
    enqueue: () => pawl.jobs.enqueue('mail', {}),
    'enqueue of many': () => pawl.jobs.enqueueMany('mail', Array(1001).fill(1)),
    get: () => pawl.jobs.get('1'),
    list: () => pawl.jobs.list({ state: 'done' }),
    why: () => pawl.jobs.why('1'),
    cancel: () => pawl.jobs.cancel('1'),
    alerts: () => pawl.alerts(),
    append: () => pawl.events.append(event),
    ingest: () => pawl.events.ingest({ ...event, id: '1' }, { source: 's' }),
    lag: () => pawl.events.lag(),
    whoHoldsBack: () => pawl.events.whoHoldsBack(),
    status: () => pawl.projections.status(),
    parked: () => pawl.projections.parked('p'),
    pause: () => pawl.projections.pause('p', act),
    seen: () => pawl.projections.seen('p', '5:1'),
    upload: () => scope.upload(['rowId\n1\n'], { format: 'csv' }),
    put: () => scope.put({ data: { rowId: '1' } }),
    'list of records': () => scope.list(),
    submissions: () => pawl.records.submissions('loads'),
    sets: () => pawl.records.sets(),
  }
}

/** Calls that do not use the callers' pool. */
function longCallsOf(pawl: Pawl): Record<string, () => Promise<unknown>> {
  return {
    audit: () => pawl.events.audit(),
    retain: () => pawl.events.retain(),
    erase: () => pawl.events.erase({ aggregateType: 'a', key: 'k', ...act }),
    worker: () => pawl.worker().start(),
    runner: () => pawl.worker().start(),
  }
}

function define(pawl: Pawl): Pawl {
  pawl.jobs.define('mail', { run: () => undefined })
  pawl.projections.define('p', { each: () => undefined })
  pawl.records.define('loads', loads)
  return pawl
}

test('[G2] after close every call says that this Pawl is closed', async () => {
  const pawl = define(pawlOfNowhere())
  await pawl.close()
  for (const [name, call] of Object.entries(callsOf(pawl)))
    await expect(call(), name).rejects.toMatchObject({
      code: 'PAWL_STOPPED',
      message: expect.stringContaining('This Pawl is closed'),
    })
})

test('[G2] without the schema every call is PAWL_SCHEMA_MISSING and names the fix', async () => {
  const pawl = define((await database({ isEmpty: true })).pawl())
  const missing = { code: 'PAWL_SCHEMA_MISSING', message: expect.stringContaining('pawl.migrate()') }
  for (const [name, call] of Object.entries({ ...callsOf(pawl), ...longCallsOf(pawl) }))
    await expect(call(), name).rejects.toMatchObject(missing)
})

test("[G2] without the schema a call in the caller's transaction is PAWL_SCHEMA_MISSING", async () => {
  const db = await database({ isEmpty: true })
  const pawl = define(db.pawl())
  const inside: Record<string, (tx: AnyTx) => Promise<unknown>> = {
    enqueue: (tx) => pawl.jobs.enqueue('mail', {}, { tx }),
    retry: (tx) => pawl.jobs.retry('1', { tx }),
    append: (tx) => pawl.events.append(event, { tx }),
    once: (tx) => once(tx, { namespace: 'n', key: 'k' }, () => 1),
    put: (tx) => pawl.records.in('loads', { organisation: '1', registration: '2' }).put({ data: { rowId: '1' } }, { tx }),
  }
  for (const [name, call] of Object.entries(inside)) {
    const client = await db.pool.connect()
    try {
      await client.query('begin')
      await expect(call(client), name).rejects.toMatchObject({ code: 'PAWL_SCHEMA_MISSING' })
      await client.query('rollback')
    } finally {
      client.release()
    }
  }
})

test("[G2] a user's own missing table stays the user's error", async () => {
  const db = await database()
  const pawl = db.pawl()
  const failed: unknown[] = []
  pawl.on('job.failed', ({ error }) => failed.push(error))
  pawl.jobs.define('mail', { tx: (_job, tx) => tx.query('select from nothing_here'), retry: { attempts: 1 } })
  await pawl.jobs.enqueue('mail', {})
  const worker = pawl.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
  expect(failed).toMatchObject([expect.stringContaining('relation "nothing_here" does not exist')])
})

test('[G2] a worker refuses to start over missing tables or columns', async () => {
  const db = await createLog()
  const start = async (table: { name: string; key: string[]; columns: string[] }) => {
    const pawl = db.pawl()
    pawl.projections.define('p', { tables: [table], each: () => undefined })
    await pawl.worker().start()
  }
  await expect(start({ name: 'nothing_here', key: ['id'], columns: ['id'] })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/^'p' declares the table 'nothing_here', which does not exist in the database\. Create it/),
  })
  await expect(start({ name: 'wallet', key: ['id'], columns: ['balance', 'ballance'] })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/declares the column 'ballance' of the table 'wallet'/),
  })
  expect(await db.query('select from pawl.projection')).toEqual([])
})

test('[G2] uploads, exports and lists of records refuse wrong options and leave nothing', async () => {
  const db = await database()
  const pawl = define(db.pawl())
  const scope = pawl.records.in('loads', { organisation: '1', registration: '2' })
  const format = { code: 'PAWL_CONFIG', message: expect.stringMatching(/^upload: format must be one of 'csv', .*'xlsx', got /) }
  await expect(scope.upload(['x'], {} as never)).rejects.toMatchObject(format)
  await expect(scope.upload(['x'], { format: 'xls' as never })).rejects.toMatchObject(format)
  await expect(scope.upload(['x'], undefined as never)).rejects.toMatchObject({
    message: 'upload: options must be an object with format, got undefined.',
  })
  for (const delimiter of ['', ',,', '"', '\n', '\r', ' ', 'a', '1', '\0', 5 as never])
    await expect(scope.upload(['x'], { format: 'csv', delimiter })).rejects.toMatchObject({
      code: 'PAWL_CONFIG',
      message: expect.stringMatching(/^upload: delimiter must be one character other than a quote/),
    })
  await expect(scope.upload(['x'], { format: 'json', delimiter: ';' })).rejects.toMatchObject({
    message: "upload: delimiter is only for format 'csv', got format 'json'.",
  })
  expect(await db.query('select from pawl.record_scope')).toEqual([])
  await expect(scope.list({ filter: { tons: '5' } })).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringMatching(/^list: filter must name columns of 'loads' \(.*tonnes.*\), got 'tons'\.$/),
  })
  await expect(scope.list({ at: '2030' as never })).rejects.toMatchObject({ message: expect.stringMatching(/at must be one of/) })
  await expect(scope.submissions({ state: 'done' as never })).rejects.toMatchObject({
    message: expect.stringMatching(/state must be/),
  })
  expect(() => scope.export({ format: 'xml' as never })).toThrow(/export: format must be one of 'csv', 'ndjson', got 'xml'/)
  await scope.put({ data: { rowId: '1', tonnes: '5' } })
  expect((await scope.list({ filter: { tonnes: '5' } })).items).toHaveLength(1)
})
