// What may be a payload: checked at enqueue, where nothing is stored, and again at run, where no retry is burnt.

import { isPawlError, type Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

const order = z.object({ id: z.number().int(), lines: z.array(z.object({ sku: z.string(), count: z.number().positive() })) })

async function stored(): Promise<number> {
  const [row] = await db.query<{ n: number }>('select count(*)::int as n from pawl.job')
  return row!.n
}

test('[J19] a payload that fails its schema at enqueue names the path, and nothing is stored', async () => {
  const kind = pawl.jobs.define('order', { schema: order, run: () => undefined })
  const bad = {
    id: 1,
    lines: [
      { sku: 'a', count: 1 },
      { sku: 'b', count: -1 },
    ],
  }
  await expect(pawl.jobs.enqueue(kind, bad)).rejects.toMatchObject({
    code: 'PAWL_INVALID_PAYLOAD',
    message: expect.stringMatching(/'order'.*lines.*1.*count/),
    details: { path: '.lines.1.count' },
  })
  // One bad among many: none is stored.
  await expect(pawl.jobs.enqueueMany(kind, [{ id: 1, lines: [] }, bad])).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })
  const client = await db.pool.connect()
  await client.query('begin')
  await expect(pawl.jobs.enqueue(kind, bad, { tx: client })).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })
  // The caller's transaction is not harmed by it.
  await pawl.jobs.enqueue(kind, { id: 2, lines: [] }, { tx: client })
  await client.query('commit')
  client.release()
  expect(await db.query('select payload from pawl.job')).toEqual([{ payload: { id: 2, lines: [] } }])
})

test('[J19] what a schema changes is what is stored and what the handler gets; asynchronous schemas are awaited', async () => {
  const seen: unknown[] = []
  const schema = z.object({ to: z.string().trim(), times: z.number().default(1) }).refine(async () => true)
  pawl.jobs.define('trimmed', { schema, run: (job) => void seen.push(job.payload) })
  await pawl.jobs.enqueue('trimmed', { to: '  a@b.c ', unknown: true })
  expect(await db.query('select payload from pawl.job')).toEqual([{ payload: { to: 'a@b.c', times: 1 } }])
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(seen).toEqual([{ to: 'a@b.c', times: 1 }])
})

for (const shape of ['run', 'tx'] as const) {
  test(`[J19] a payload that does not validate at run is dead without a retry, and its ${shape} handler is not called`, async () => {
    let calls = 0
    const handler = () => {
      calls++
    }
    pawl.jobs.define('order', { schema: order, ...(shape === 'run' ? { run: handler } : { tx: handler }) } as Parameters<
      Pawl['jobs']['define']
    >[1])
    const [row] = await db.query<{ id: string }>(
      `select pawl.enqueue('order', '{"id": 1, "lines": [{"sku": 5, "count": 1}]}')::text as id`,
    )
    const report = await runAll(pawl)
    expect(report.dead).toMatchObject([{ id: row!.id, reason: expect.stringContaining('.lines.0.sku') }])
    expect(await pawl.jobs.get(row!.id)).toMatchObject({
      state: 'dead',
      attempt: 1,
      lastError: expect.stringContaining('.lines.0.sku'),
    })
    expect(await pawl.jobs.attempts(row!.id)).toMatchObject([{ outcome: 'invalid', attempt: 1 }])
    expect(await pawl.alerts()).toMatchObject([{ code: 'job.dead', subject: 'order' }])
    expect(calls).toBe(0)
  })
}

test('[J19] a shared transaction is not spoilt by one payload that does not validate', async () => {
  await db.query('create table effect (job bigint)')
  pawl.jobs.define<{ n: number }>('shared', {
    share: 10,
    schema: z.object({ n: z.number() }),
    tx: async (job, tx) => void (await tx.query('insert into effect values ($1)', [job.id])),
  })
  for (const payload of ['{"n": 1}', '{"n": "two"}', '{"n": 3}'])
    await db.query("select pawl.enqueue('shared', $1::jsonb)", [payload])
  const report = await runAll(pawl)
  expect(report.done).toHaveLength(2)
  expect(report.dead).toMatchObject([{ reason: expect.stringContaining('.n') }])
  expect(await db.query('select from effect')).toHaveLength(2)
})

test('[J19] upgrade brings an older payload to the current shape before it is validated', async () => {
  const older = db.pawl()
  older.jobs.define('mail', { schema: z.object({ address: z.string() }), run: () => undefined })
  const { id } = await older.jobs.enqueue('mail', { address: 'a@b.c' })
  const seen: unknown[] = []
  const versions: number[] = []
  pawl.jobs.define<{ to: string[] }>('mail', {
    payloadVersion: 3,
    schema: z.object({ to: z.array(z.string()) }),
    upgrade: (payload, version) => {
      versions.push(version)
      return { to: [(payload as { address: string }).address] }
    },
    run: (job) => void seen.push(job.payload),
  })
  const { id: current } = await pawl.jobs.enqueue('mail', { to: ['c@d.e'] })
  const report = await runAll(pawl)
  expect(report.done.map((job) => job.id).sort()).toEqual([id, current].sort())
  expect(seen).toEqual([{ to: ['a@b.c'] }, { to: ['c@d.e'] }])
  expect(versions).toEqual([1])
})

test('[J19] an upgrade that throws makes its job dead without a retry', async () => {
  pawl.jobs.define('mail', {
    payloadVersion: 2,
    upgrade: () => {
      throw new Error('cannot be upgraded')
    },
    run: () => undefined,
  })
  await db.query("select pawl.enqueue('mail')")
  const report = await runAll(pawl)
  expect(report.dead.map(({ reason }) => reason)).toEqual([expect.stringContaining('cannot be upgraded')])
  expect(report.retrying).toEqual([])
})

test('[J19] a payload newer than a release knows waits for a worker of the newer one, without an attempt', async () => {
  const newer = db.pawl()
  const ran: unknown[] = []
  pawl.jobs.define('mail', { payloadVersion: 2, run: () => void ran.push('old') })
  newer.jobs.define('mail', { payloadVersion: 3, run: (job) => void ran.push(job.payload) })
  const { id } = await newer.jobs.enqueue('mail', { to: 'a@b.c' })
  const old = pawl.jobs.worker()
  await old.start()
  await until('it is put off', async () => (await pawl.jobs.get(id))!.state === 'scheduled')
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 0, lastError: expect.stringContaining('deploy the newer release') })
  await old.stop()
  await newer.jobs.retry(id)
  const worker = newer.jobs.worker()
  await worker.start()
  await until('it is done', async () => (await newer.jobs.get(id))!.state === 'done')
  await worker.stop()
  expect(ran).toEqual([{ to: 'a@b.c' }])
})

function nested(depth: number): unknown {
  let value: unknown = 'bottom'
  for (let n = 0; n < depth; n++) value = n % 2 === 0 ? [value] : { in: value }
  return value
}

const cyclic: Record<string, unknown> = {}
cyclic.self = cyclic

const refused: Readonly<Record<string, { payload: unknown; says: RegExp }>> = {
  'too large': { payload: { text: 'x'.repeat(1_048_576) }, says: /larger than 1048576 bytes; store it elsewhere/ },
  'too large in bytes though not in characters': { payload: { text: '\u{1f600}'.repeat(300_000) }, says: /larger than/ },
  'too deep': { payload: nested(65), says: /nested too deeply/ },
  'far too deep': { payload: nested(20_000), says: /nested too deeply|cannot be written as JSON/ },
  'a NUL character': { payload: { a: [{ b: 'x\u0000y' }] }, says: /payload\.a\[0\]\.b contains a NUL character/ },
  'a NUL character in a key': { payload: { 'x\u0000y': 1 }, says: /contains a NUL character/ },
  'half of a surrogate pair': { payload: { a: ['ok', '\ud83d'] }, says: /payload\.a\[1\] contains half of a surrogate pair/ },
  'half of a surrogate pair in a key': { payload: { '\udc00': 1 }, says: /half of a surrogate pair/ },
  'a key named __proto__': {
    payload: JSON.parse('{"a": {"__proto__": {"isAdmin": true}}}'),
    says: /payload\.a\.__proto__ is a key/,
  },
  'a BigInt': { payload: { n: 1n }, says: /cannot be written as JSON \(.*BigInt/ },
  'a cycle': { payload: cyclic, says: /cannot be written as JSON \(.*circular/i },
  'a function': { payload: () => undefined, says: /is undefined or a function/ },
  'a symbol': { payload: Symbol('no'), says: /is undefined or a function/ },
}

for (const [name, { payload, says }] of Object.entries(refused)) {
  test(`[J19] ${name}: a clear error, and nothing is stored`, async () => {
    pawl.jobs.define('any', { run: () => undefined })
    for (const enqueue of [
      () => pawl.jobs.enqueue('any', payload),
      () => pawl.jobs.enqueue('kind of another process', payload),
      () => pawl.jobs.enqueueMany('any', [{}, payload]),
      () => pawl.jobs.enqueue('any', payload, { tx: db.pool }),
      () => pawl.jobs.enqueue('any', {}, { headers: { payload } }),
    ]) {
      if (typeof payload === 'function' || typeof payload === 'symbol') if (enqueue.toString().includes('headers')) continue
      const error = await enqueue().then(
        () => undefined,
        (thrown: unknown) => thrown,
      )
      expect(isPawlError(error, 'PAWL_INVALID_PAYLOAD')).toBe(true)
      if (!enqueue.toString().includes('headers')) expect((error as Error).message).toMatch(says)
      // The message itself can be stored and shown.
      expect((error as Error).message.isWellFormed() && !(error as Error).message.includes('\u0000')).toBe(true)
      expect((error as Error).message.length).toBeLessThan(1000)
    }
    expect(await stored()).toBe(0)
  })
}

test('[J19] undefined is stored as null, and as a field it is left out, as JSON has it', async () => {
  await pawl.jobs.enqueue('any', undefined)
  await pawl.jobs.enqueue('any', { a: undefined, b: [undefined] })
  expect(await db.query('select payload from pawl.job order by id')).toEqual([{ payload: null }, { payload: { b: [null] } }])
})

test('[J19] what is just allowed arrives as it was sent', async () => {
  const payloads = [
    nested(64),
    { text: 'x'.repeat(1_048_000) },
    { constructor: 1, prototype: 2, text: 'the word __proto__ as text, \\u0000 as text, \u{1f600}' },
    0,
    '',
    false,
    [],
    null,
  ]
  const seen: unknown[] = []
  pawl.jobs.define('any', { concurrency: 1, run: (job) => void seen.push(job.payload) })
  await pawl.jobs.enqueueMany('any', payloads)
  await runAll(pawl)
  expect(seen).toEqual(payloads)
})

test('[J19] plain SQL cannot store what PostgreSQL refuses or what is far too large', async () => {
  for (const [payload, says] of [
    ['{"a": "x\\u0000y"}', /unsupported Unicode escape sequence/],
    ['{"a": "\\ud83d"}', /invalid input syntax for type json/],
  ] as const) {
    await expect(db.query("select pawl.enqueue('any', $1::jsonb)", [payload])).rejects.toThrow(says)
  }
  await expect(db.query("select pawl.enqueue('any', jsonb_build_object('text', repeat('x', 17000000)))")).rejects.toMatchObject({
    code: '22023',
    message: 'a payload is larger than 16 MB',
    hint: 'Store it elsewhere and pass a reference.',
  })
  expect(await stored()).toBe(0)
})

test('[J19] what only plain SQL lets in, too deep or with __proto__, is dead at run without a retry, naming the path', async () => {
  const seen: unknown[] = []
  pawl.jobs.define('any', { run: (job) => void seen.push(job.payload) })
  await db.query("select pawl.enqueue('any', $1::jsonb)", ['{"a": {"__proto__": {"isAdmin": true}}}'])
  await db.query("select pawl.enqueue('any', $1::jsonb)", [JSON.stringify(nested(65))])
  const report = await runAll(pawl)
  expect(report.dead.map(({ reason }) => reason)).toEqual([
    expect.stringContaining('payload.a.__proto__ is a key'),
    expect.stringContaining('is nested too deeply'),
  ])
  expect(report.retrying).toEqual([])
  expect(await db.query('select state, attempt from pawl.job')).toEqual([
    { state: 'dead', attempt: 1 },
    { state: 'dead', attempt: 1 },
  ])
  expect(seen).toEqual([])
  expect(({} as { isAdmin?: boolean }).isAdmin).toBeUndefined()
})

test('a result that cannot be stored fails the attempt and says so', async () => {
  pawl.jobs.define('odd', { retry: { attempts: 1 }, run: () => ({ n: 1n }) })
  await pawl.jobs.enqueue('odd', {})
  expect((await runAll(pawl)).dead).toMatchObject([{ reason: expect.stringMatching(/result of 'odd'.*BigInt/) }])
})

test('[J19] many large payloads are sent in pieces that PostgreSQL can take', async () => {
  const payloads = Array.from({ length: 20 }, (_, n) => ({ n, text: String(n % 10).repeat(1_000_000) }))
  const client = await db.pool.connect()
  const sent: number[] = []
  const tx = {
    query: (text: string, values: unknown[] = []) => {
      if (text.includes('enqueue_many')) sent.push((values[3] as string).length)
      return client.query(text, values)
    },
  }
  const { ids } = await pawl.jobs.enqueueMany('large', payloads, { tx })
  client.release()
  expect(ids).toHaveLength(20)
  expect(sent).toHaveLength(3)
  expect(Math.max(...sent)).toBeLessThan(9_000_000)
  expect(await db.query("select array_agg((payload ->> 'n')::integer order by id) as numbers from pawl.job")).toEqual([
    { numbers: payloads.map(({ n }) => n) },
  ])
})
