// The wall between tenants: every verb of every capability is tried from another tenant, and nothing of the first is read or changed.

import type { Pawl, RecordScope, Submission, Tenant } from 'pawl'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from './support/database.ts'
import { calmRunner } from './support/projections.ts'
import { csv, defineLoads, loadRows } from './support/records.ts'

let db: TestDatabase
let pawl: Pawl
let acme: Tenant
let bolt: Tenant
let scope: RecordScope
let waiting: string
let dead: string
let validated: Submission
let batch: string
let document: string
let invalid: Submission
const here = { organisation: '17', registration: '4' }
const event = { type: 'Placed', aggregateType: 'order', key: 'secret', data: { card: 1 } }
const ingested = { source: 'chain', position: 7 }
const act = { reason: 'to try the wall' }

beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  acme = pawl.for('acme')
  bolt = pawl.for('bolt')
  defineLoads(pawl)
  pawl.batches.define('reparse', { item: { run: () => undefined } })
  pawl.documents.define('Secret', { identity: ['secret'], references: { other: 'Secret' }, keyChange: 'cascade' })
  scope = acme.records.in('loads', here)
  pawl.jobs.define('dies', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('secret')) })
  acme.projections.define('totals', {
    retry: { attempts: 1 },
    tables: [{ name: 'totals', key: ['key'], columns: ['key'] }],
    each: () => Promise.reject(new Error('secret')),
  })
  await db.query('create table totals (key text primary key)')
  const worker = pawl.worker({ tuning: { pollMs: 50 } })
  await worker.start()
  dead = (await acme.jobs.enqueue('dies', { secret: 1 })).id
  const upload = await scope.upload(csv(loadRows(3)), { format: 'csv' })
  await acme.records.submit(upload.id)
  await until('it is submitted', async () => (await acme.records.get(upload.id)).state === 'submitted')
  await until('the job is dead', async () => (await acme.jobs.get(dead))?.state === 'dead')
  await worker.stop()
  waiting = (await acme.jobs.enqueue('later', { secret: 1 }, { delay: '1h' })).id
  validated = await scope.upload(csv(loadRows(4)), { format: 'csv' })
  invalid = await scope.upload(csv(loadRows(1, (row) => ({ ...row, tonnes: 'many' }))), { format: 'csv' })
  await acme.events.append(event)
  await acme.events.ingest({ ...event, id: '1' }, ingested)
  const runner = pawl.worker(calmRunner)
  await runner.start()
  await until(
    'its key is parked',
    async () => (await acme.projections.parked('totals')).items,
    (parked) => parked.some(({ key }) => key === event.key),
  )
  await runner.stop()
  document = (await acme.documents.post('Secret', { secret: 1 })).uuid
  batch = (await acme.batches.start('reparse', [{ key: 'secret' }])).id
})
afterAll(() => db.drop())

type Trials = Readonly<Record<string, () => Promise<unknown>>>

const missing = (work: () => Promise<unknown>) => expect(work()).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
const undefinedHere = (work: () => Promise<unknown>) => expect(work()).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
const empty = async (work: () => Promise<unknown>) => expect(await work()).toEqual([])
/** It writes for its own tenant; whether anything of the other changed is compared at the end. */
const own = (work: () => Promise<unknown>) => work()

const trials: Readonly<Record<string, Trials>> = {
  jobs: {
    define: async () => bolt.jobs.define('of bolt', { run: () => undefined }),
    handle: async () => bolt.jobs.handle(bolt.jobs.define('handled of bolt'), { run: () => undefined }),
    enqueue: () => own(() => bolt.jobs.enqueue('later', {}, { delay: '1h' })),
    enqueueMany: () => own(() => bolt.jobs.enqueueMany('later', [1, 2], { delay: '1h' })),
    get: async () => expect([await bolt.jobs.get(waiting), await bolt.jobs.get(dead)]).toEqual([undefined, undefined]),
    attempts: () => empty(() => bolt.jobs.attempts(dead)),
    list: async () => {
      await empty(async () => (await bolt.jobs.list({ state: 'dead' })).items)
      expect((await bolt.jobs.list()).items.every(({ tenant }) => tenant === 'bolt')).toBe(true)
    },
    cancel: () => missing(() => bolt.jobs.cancel(waiting)),
    retry: () => missing(() => bolt.jobs.retry(dead)),
    why: async () => expect(JSON.stringify(await bolt.jobs.why(dead).catch(String))).not.toContain('secret'),
  },
  events: {
    append: () => own(() => bolt.events.append(event)),
    ingest: async () => expect(await bolt.events.ingest({ ...event, id: '1' }, ingested)).toMatchObject({ outcome: 'ingested' }),
    erase: async () =>
      expect(await pawl.for('cole').events.erase({ aggregateType: 'order', key: 'secret', ...act })).toEqual({ erased: 0 }),
  },
  projections: {
    define: async () => bolt.projections.define('other', { each: () => undefined }),
    react: async () => bolt.projections.react('reaction', { each: () => undefined }),
    sink: async () => bolt.projections.sink('out', { handle: () => undefined }),
    status: () => empty(() => bolt.projections.status()),
    parked: () => missing(() => bolt.projections.parked('totals')),
    forget: () => missing(() => bolt.projections.forget('totals', act)),
    pause: () => missing(() => bolt.projections.pause('totals', act)),
    resume: () => missing(() => bolt.projections.resume('totals', act)),
    skip: () => missing(() => bolt.projections.skip('totals', { ...act, position: 1 })),
    unpark: async () => {
      await missing(() => bolt.projections.unpark('totals', act))
      await missing(() => bolt.projections.unpark('totals', { ...act, key: 'secret', keyTenant: 'acme' }))
    },
    seen: () => missing(() => bolt.projections.seen('totals', '1:1', { timeout: 1 })),
    rebuild: () => missing(() => bolt.projections.rebuild('totals', act)),
    compare: () => undefinedHere(() => bolt.projections.compare('totals', { generation: 1 })),
    switchTo: () => undefinedHere(() => bolt.projections.switchTo('totals', { ...act, generation: 1 })),
    rollBack: () => undefinedHere(() => bolt.projections.rollBack('totals', { ...act, generation: 1 })),
    retire: () => undefinedHere(() => bolt.projections.retire('totals', { ...act, generation: 1 })),
  },
  records: {
    define: async () => void bolt.records.define('mine', { scope: ['a'], types: { t: { key: 'k', columns: { k: 'text' } } } }),
    in: async () => void bolt.records.in('loads', here),
    sets: () => empty(() => bolt.records.sets()),
    get: () => missing(() => bolt.records.get(validated.id)),
    submissions: () => empty(async () => (await bolt.records.submissions('loads')).items),
    rows: () => missing(() => bolt.records.rows(validated.id, 'created')),
    errors: () => missing(() => bolt.records.errors(invalid.id)),
    submit: () => missing(() => bolt.records.submit(validated.id)),
    resume: () => missing(() => bolt.records.resume(validated.id)),
    cancel: () => missing(() => bolt.records.cancel(validated.id, act)),
    rebase: () => missing(() => bolt.records.rebase(validated.id)),
    why: () => missing(() => bolt.records.why(validated.id)),
    ended: () => missing(() => bolt.records.ended(validated.id)),
  },
  documents: {
    define: async () => undefinedHere(async () => bolt.documents.define('Late', { identity: ['a'] })),
    receipt: () => own(() => bolt.documents.receipt()),
    post: async () => expect(await bolt.documents.post('Secret', { secret: 1 })).toMatchObject({ outcome: 'created' }),
    postMany: () => own(() => bolt.documents.postMany('Secret', [{ secret: 2 }])),
    put: () => missing(() => bolt.documents.put('Secret', document, { secret: 3 })),
    putAll: () => missing(() => bolt.documents.putAll([{ type: 'Secret', uuid: document, body: { secret: 3 } }])),
    delete: () => missing(() => bolt.documents.delete('Secret', document)),
    get: async () => expect(await bolt.documents.get('Secret', document)).toBeUndefined(),
    list: async () => expect((await bolt.documents.list('Secret')).items.map(({ uuid }) => uuid)).not.toContain(document),
    referrers: () => missing(() => bolt.documents.referrers('Secret', document)),
    dependents: () => missing(() => bolt.documents.dependents('Secret', document)),
    types: () => own(() => bolt.documents.types()),
    verify: async () => expect(await bolt.documents.verify()).toMatchObject({ faults: [] }),
  },
  batches: {
    define: async () => void bolt.batches.define('of bolt', { item: { run: () => undefined } }),
    handle: async () => bolt.batches.handle(bolt.batches.define('handled by bolt'), { item: { run: () => undefined } }),
    start: () => own(() => bolt.batches.start('reparse', [{ key: 'a' }])),
    get: () => missing(() => bolt.batches.get(batch)),
    items: () => missing(() => bolt.batches.items(batch)),
    list: async () => expect((await bolt.batches.list()).items.map(({ id }) => id)).not.toContain(batch),
    why: () => missing(() => bolt.batches.why(batch)),
    stuck: async () => expect((await bolt.batches.stuck()).items).toEqual([]),
    cancel: () => missing(() => bolt.batches.cancel(batch, { ...act, by: 'bolt' })),
    extend: () => missing(() => bolt.batches.extend(batch, { ...act, by: 'bolt', for: 1 })),
    rerun: () => missing(() => bolt.batches.rerun(batch)),
  },
  scope: {
    submissions: () => empty(async () => (await theirs().submissions()).items),
    state: async () => expect(await theirs().state()).toBeUndefined(),
    get: async () => expect(await theirs().get('load', 'row-1')).toBeUndefined(),
    list: async () => expect((await theirs().list()).items).toEqual([]),
    history: () => empty(async () => (await theirs().history('load', 'row-1')).items),
    diff: async () =>
      expect(JSON.stringify(await theirs().diff('load', 'row-1', { number: '0' }, { number: '1' }).catch(String))).not.toContain(
        'note',
      ),
    export: async () => {
      let text = ''
      for await (const part of theirs().export({ format: 'ndjson' })) text += part
      expect(text).toBe('')
    },
    erase: () => missing(() => theirs().erase('load', 'row-1', act)),
    audit: async () => expect(await theirs().audit()).toBeUndefined(),
    put: () => own(() => theirs().put({ data: loadRows(1)[0]! })),
    append: () => own(() => theirs().append([{ data: loadRows(2)[1]! }])),
    upload: () => own(() => theirs().upload(csv(loadRows(2)), { format: 'csv' })),
  },
}

/** The scope of the same name, of the other tenant. */
function theirs(): RecordScope {
  return bolt.records.in('loads', here)
}

function verbsOf(value: object): string[] {
  return Object.getOwnPropertyNames(Object.getPrototypeOf(value)).filter((name) => name !== 'constructor')
}

/** What every table has of the tenant, as one text each. */
async function allOf(tenant: string): Promise<unknown> {
  const tables = await db.query<{ name: string }>(
    "select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant' where c.relnamespace = 'pawl'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition",
  )
  const found: Record<string, unknown> = {}
  for (const { name } of tables)
    found[name] = await db.query(`select t::text as row from pawl.${name} t where tenant = $1 order by 1`, [tenant])
  return found
}

test('[K13] a verb that no trial covers fails here', () => {
  expect(Object.keys(bolt).sort()).toEqual([
    'alerts',
    'batches',
    'documents',
    'events',
    'jobs',
    'projections',
    'records',
    'tenant',
  ])
  const tried = (capability: string) => Object.keys(trials[capability]!).sort()
  expect(tried('jobs')).toEqual(verbsOf(bolt.jobs).sort())
  expect(tried('events')).toEqual(verbsOf(bolt.events).sort())
  expect(tried('projections')).toEqual(verbsOf(bolt.projections).sort())
  expect(tried('documents')).toEqual(verbsOf(bolt.documents).sort())
  expect(tried('batches')).toEqual(verbsOf(bolt.batches).sort())
  expect(tried('records')).toEqual(verbsOf(bolt.records).sort())
  expect(tried('scope')).toEqual(verbsOf(theirs()).sort())
})

test("[K13] no verb of one tenant reads or changes another tenant's rows", async () => {
  const before = await allOf('acme')
  expect(Object.values(before as Record<string, unknown[]>).filter((rows) => rows.length > 0).length).toBeGreaterThan(10)
  expect(await bolt.alerts()).toEqual([])
  for (const capability of Object.keys(trials))
    for (const [verb, attempt] of Object.entries(trials[capability]!)) {
      await attempt()
      expect(await allOf('acme'), `after ${capability}.${verb}`).toEqual(before)
    }
  await expect(db.query("select pawl.complete_job('bolt', $1, 0)", [waiting])).rejects.toMatchObject({ code: 'PW001' })
  expect(await allOf('acme')).toEqual(before)
})

test('alerts of all tenants are listed by the root handle alone', async () => {
  expect(await pawl.alerts()).toEqual([])
  const all = await pawl.alerts({ tenant: '*' })
  expect(all.map(({ tenant, code }) => `${tenant} ${code}`)).toContain('acme job.dead')
  expect(await acme.alerts()).toEqual(all.filter(({ tenant }) => tenant === 'acme'))
  await expect(pawl.alerts({ tenant: 'acme' as never })).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
})

test.each([[''], ['x'.repeat(101)], ['a\u0000b'], ['\ud800'], [{}], [Buffer.from('acme')], [undefined], [null], [7]])(
  'for(%j) is refused with its fix',
  (tenant) => {
    expect(() => pawl.for(tenant as never)).toThrow(/^for: tenant must be a string of 1 to 100 characters .*, got /)
    expect(() => pawl.for(tenant as never)).toThrow(expect.objectContaining({ code: 'PAWL_CONFIG' }))
  },
)

test('for() takes 100 characters, also those of two code units', () => {
  expect(pawl.for('𝒳'.repeat(100)).tenant).toHaveLength(200)
})

test("what a handler enqueues, appends and puts belongs to its job's tenant", async () => {
  const mine = db.pawl()
  defineLoads(mine)
  const root = mine.records.in('loads', { organisation: '1', registration: '1' })
  const row = (note: string) => ({ data: { ...loadRows(1)[0]!, note } })
  const delay = '1h'
  mine.jobs.define('run', {
    onDead: async () => void (await mine.jobs.enqueue('follow', 'onDead', { delay })),
    retry: { attempts: 1 },
    run: async (job) => {
      await mine.jobs.enqueue('follow', 'run', { delay })
      await mine.for('cole').jobs.enqueue('follow', 'run for another', { delay })
      await mine.events.append({ ...event, key: 'run' })
      await root.put(row(job.tenant))
      throw new Error('over')
    },
  })
  for (const [name, share] of [['tx'], ['shared', 4]] as const)
    mine.jobs.define(name, {
      ...(share === undefined ? {} : { share }),
      tx: async (_job, tx) => {
        await mine.jobs.enqueue('follow', name, { tx, delay })
        await mine.for('cole').jobs.enqueue('follow', `${name} for another`, { tx, delay })
        await mine.events.append({ ...event, key: name }, { tx })
      },
    })
  const worker = mine.worker()
  onTestFinished(async () => void (await worker.stop()))
  await worker.start()
  for (const tenant of ['dune', 'edge']) {
    const { jobs } = mine.for(tenant)
    const ids = [await jobs.enqueue('run', {}), await jobs.enqueue('tx', {}), await jobs.enqueue('shared', {})]
    for (const { id } of ids)
      await until('it has ended', async () => ['done', 'dead'].includes((await jobs.get(id))?.state ?? ''))
  }
  await until('the hooks ran', async () => (await db.query('select from pawl.job where payload = \'"onDead"\'')).length === 2)
  const follows = await db.query<{ tenant: string; what: string }>(
    "select tenant, payload #>> '{}' as what from pawl.job where kind = 'follow' order by 1, 2",
  )
  const [dune, edge] = ['dune', 'edge'].map((tenant) => ['onDead', 'run', 'shared', 'tx'].map((what) => ({ tenant, what })))
  const named = ['run', 'shared', 'tx'].flatMap((what) => Array(2).fill({ tenant: 'cole', what: `${what} for another` }))
  expect(follows).toEqual([...named, ...dune!, ...edge!])
  expect(
    await db.query(
      "select tenant, aggregateid as key from pawl.event where aggregateid in ('run', 'tx', 'shared') order by 1, 2",
    ),
  ).toEqual(['dune', 'edge'].flatMap((tenant) => ['run', 'shared', 'tx'].map((key) => ({ tenant, key }))))
  expect(await root.state()).toBeUndefined()
  for (const tenant of ['dune', 'edge'])
    expect(
      await mine.for(tenant).records.in('loads', { organisation: '1', registration: '1' }).get('load', 'row-0'),
    ).toMatchObject({
      data: { note: tenant },
    })
})
