// What may be a payload: checked at enqueue, where nothing is stored, and again at run, where no retry is burnt.

import { isPawlError, type Job, type Pawl, type Tx } from 'pawl'
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

test('[J19] a payload that fails its schema at enqueue is refused by path', async () => {
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

test('[J30] the input is stored as given; the handler gets the parsed value', async () => {
  const seen: unknown[] = []
  const schema = z.object({ to: z.string().trim(), times: z.number().default(1) }).refine(async () => true)
  pawl.jobs.define('trimmed', { schema, run: (job) => void seen.push(job.payload) })
  await pawl.jobs.enqueue('trimmed', { to: '  a@b.c ', unknown: true })
  expect(await db.query('select payload from pawl.job')).toEqual([{ payload: { to: '  a@b.c ', unknown: true } }])
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(seen).toEqual([{ to: 'a@b.c', times: 1 }])
})

for (const share of [1, 10]) {
  test(`[J30] transforms, dates and coercions arrive as the handler's types say (share: ${share})`, async () => {
    const seen: { price: number; at: Date; on: Date; day: string; tags: string[] }[] = []
    const schema = z.object({
      price: z.string().transform(Number),
      at: z.coerce.date(),
      on: z.iso.datetime().transform((text) => new Date(text)),
      day: z.string().trim(),
      tags: z.array(z.string()).default(['none']),
    })
    const kind = pawl.jobs.define('typed', { schema, share, tx: (job) => void seen.push(job.payload) })
    const at = new Date(1_700_000_000_000)
    const input = { price: '12.5', at, on: at.toISOString(), day: ' monday ' }
    await pawl.jobs.enqueue(kind, input)
    await pawl.jobs.enqueueMany(kind, [input])
    // @ts-expect-error enqueue takes the schema's input: its price is a string
    await expect(pawl.jobs.enqueue(kind, { ...input, price: 12.5 })).rejects.toMatchObject({ details: { path: '.price' } })
    const report = await runAll(pawl)
    expect(report.dead).toEqual([])
    const parsed = { price: 12.5, at, on: at, day: 'monday', tags: ['none'] }
    expect(seen).toEqual([parsed, parsed])
  })
}

test('[J30] a schema that cannot read its stored input is refused at enqueue', async () => {
  const kind = pawl.jobs.define('dated', { schema: z.object({ at: z.date() }), run: () => undefined })
  await expect(pawl.jobs.enqueue(kind, { at: new Date() })).rejects.toMatchObject({
    code: 'PAWL_INVALID_PAYLOAD',
    message: expect.stringMatching(/valid as given, but not after it is stored as JSON: payload\.at: .*z\.coerce\.date\(\)/),
    details: { path: '.at' },
  })
  expect(await stored()).toBe(0)
})

for (const shape of ['run', 'tx'] as const) {
  test(`[J19] an invalid payload at run is dead; its ${shape} handler is skipped`, async () => {
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

test('[J19] one invalid payload does not spoil a shared transaction', async () => {
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

test('[J19] an older payload is upgraded before it is validated', async () => {
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

test('[J19] a newer payload waits for a newer worker, without an attempt', async () => {
  const newer = db.pawl()
  const ran: unknown[] = []
  pawl.jobs.define('mail', { payloadVersion: 2, run: () => void ran.push('old') })
  newer.jobs.define('mail', { payloadVersion: 3, run: (job) => void ran.push(job.payload) })
  const { id } = await newer.jobs.enqueue('mail', { to: 'a@b.c' })
  const old = pawl.worker()
  await old.start()
  await until('it is put off', async () => (await pawl.jobs.get(id))!.state === 'scheduled')
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 0, lastError: expect.stringContaining('deploy the newer code') })
  await old.stop()
  await newer.jobs.retry(id)
  const worker = newer.worker()
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
  'too deep': { payload: nested(65), says: /nested more than/ },
  'far too deep': { payload: nested(20_000), says: /nested more than|cannot be written as JSON/ },
  'a NUL character': { payload: { a: [{ b: 'x\u0000y' }] }, says: /payload\.a\[0\]\.b contains a NUL character/ },
  'a NUL character in a key': { payload: { 'x\u0000y': 1 }, says: /contains a NUL character/ },
  'half of a surrogate pair': { payload: { a: ['ok', '\ud83d'] }, says: /payload\.a\[1\] contains half a surrogate pair/ },
  'half of a surrogate pair in a key': { payload: { '\udc00': 1 }, says: /half a surrogate pair/ },
  'a key named __proto__': {
    payload: JSON.parse('{"a": {"__proto__": {"isAdmin": true}}}'),
    says: /payload\.a\.__proto__ is a key/,
  },
  'a BigInt': { payload: { n: 1n }, says: /payload\.n is a BigInt/ },
  'a cycle': { payload: cyclic, says: /payload\.self contains itself/ },
  'a function': { payload: () => undefined, says: /payload is a function/ },
  'a symbol': { payload: Symbol('no'), says: /payload is a symbol/ },
  NaN: { payload: { list: [1, Number.NaN] }, says: /payload\.list\[1\] is NaN/ },
  'undefined in an array': { payload: { list: [undefined] }, says: /payload\.list\[0\] is undefined/ },
  'a Map': { payload: { map: new Map() }, says: /payload\.map is a Map/ },
}

for (const [name, { payload, says }] of Object.entries(refused)) {
  test(`[J19] ${name}: a clear error, and nothing is stored`, async () => {
    pawl.jobs.define('any', { run: () => undefined })
    for (const enqueue of [
      () => pawl.jobs.enqueue('any', payload),
      () => pawl.jobs.enqueue('kind of another process', payload),
      () => pawl.jobs.enqueueMany('any', [{}, payload]),
      () => pawl.jobs.enqueue('any', payload, { tx: { query: () => Promise.reject(new Error('it was asked')) } }),
      () => pawl.jobs.enqueue('any', {}, { headers: { payload } }),
    ]) {
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

test('[J19] undefined is stored as null, and left out as a field', async () => {
  await pawl.jobs.enqueue('any', undefined)
  await pawl.jobs.enqueue('any', { a: undefined, b: 1 })
  expect(await db.query('select payload from pawl.job order by id')).toEqual([{ payload: null }, { payload: { b: 1 } }])
})

test('[J30] a bulk call checks every payload before writing, naming the index', async () => {
  const payloads = Array.from({ length: 2500 }, (_, n) => ({ n: n === 2100 ? Number.NaN : n }))
  const refusal = { code: 'PAWL_INVALID_PAYLOAD', details: { path: '.n', index: 2100 } }
  await expect(pawl.jobs.enqueueMany('any', payloads)).rejects.toMatchObject(refusal)
  await expect(pawl.jobs.enqueueMany('any', payloads.values())).rejects.toMatchObject(refusal)
  const neverAsked = { query: () => Promise.reject(new Error('it was asked')) }
  await expect(pawl.jobs.enqueueMany('any', payloads, { tx: neverAsked })).rejects.toMatchObject(refusal)
  await expect(
    pawl.events.append(payloads.map((data) => ({ type: 't', aggregateType: 'a', key: 'k', data }))),
  ).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD', details: { path: '.n', index: 2100 } })
  expect(await stored()).toBe(0)
})

test('[J30] progress and headers that JSON cannot carry are refused by path', async () => {
  const errors: unknown[] = []
  pawl.jobs.define('any', {
    run: async (_, { touch }) => void (await touch({ done: Number.NaN }).catch((error: unknown) => errors.push(error))),
  })
  await pawl.jobs.enqueue('any', {})
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(errors).toMatchObject([{ code: 'PAWL_INVALID_PAYLOAD', details: { path: '.done' } }])
  const event = { type: 't', aggregateType: 'a', key: 'k', data: {}, headers: { at: new Date(Number.NaN) } }
  await expect(pawl.events.append(event)).rejects.toMatchObject({ details: { path: '.at', reason: 'is an invalid date' } })
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

test('[J19] plain SQL cannot store refused or far too large payloads', async () => {
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

test('[J19] a too deep or __proto__ payload from SQL is dead at run', async () => {
  const seen: unknown[] = []
  pawl.jobs.define('any', { run: (job) => void seen.push(job.payload) })
  await db.query("select pawl.enqueue('any', $1::jsonb)", ['{"a": {"__proto__": {"isAdmin": true}}}'])
  await db.query("select pawl.enqueue('any', $1::jsonb)", [JSON.stringify(nested(65))])
  const report = await runAll(pawl)
  expect(report.dead.map(({ reason }) => reason)).toEqual([
    expect.stringContaining('payload.a.__proto__ is a key'),
    expect.stringContaining('is nested more than'),
  ])
  expect(report.retrying).toEqual([])
  expect(await db.query('select state, attempt from pawl.job')).toEqual([
    { state: 'dead', attempt: 1 },
    { state: 'dead', attempt: 1 },
  ])
  expect(seen).toEqual([])
  expect(({} as { isAdmin?: boolean }).isAdmin).toBeUndefined()
})

for (const shape of ['run', 'tx', 'complete'] as const) {
  test(`[J30] a result that cannot be stored (${shape}) makes its job dead`, async () => {
    let calls = 0
    const odd = { odd: [1, Number.NaN] }
    const answer = () => {
      calls++
      return odd
    }
    const complete = async (job: Job) => {
      const client = await db.pool.connect()
      try {
        await client.query('begin')
        await job.complete(client, answer())
      } finally {
        await client.query('rollback')
        client.release()
      }
    }
    const retry = { initialMs: 1, jitter: false }
    if (shape === 'tx') pawl.jobs.define('odd', { retry, tx: answer })
    else pawl.jobs.define('odd', { retry, run: shape === 'run' ? answer : complete })
    const { id } = await pawl.jobs.enqueue('odd', {})
    const report = await runAll(pawl)
    expect(report.dead).toMatchObject([{ id, reason: expect.stringMatching(/result of 'odd': result\.odd\[1\] is NaN/) }])
    expect(report.retrying).toEqual([])
    expect(await pawl.jobs.get(id)).toMatchObject({ state: 'dead', attempt: 1 })
    expect(calls).toBe(1)
  })
}

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
  await client.query('begin')
  const { ids } = await pawl.jobs.enqueueMany('large', payloads, { tx })
  await client.query('commit')
  client.release()
  expect(ids).toHaveLength(20)
  expect(sent).toHaveLength(5)
  expect(Math.max(...sent)).toBeLessThan(4_500_000)
  expect(await db.query("select array_agg((payload ->> 'n')::integer order by id) as numbers from pawl.job")).toEqual([
    { numbers: payloads.map(({ n }) => n) },
  ])
})

interface Consumed {
  readonly items: number[]
}

async function items(): Promise<number[]> {
  return (await db.query<{ n: number }>('select n from item order by n')).map(({ n }) => n)
}

test('[J2] a handler that changed its payload gets the stored one again', async () => {
  await db.query('create table item (n integer)')
  const schema = z.object({ items: z.array(z.number()) }).refine(async () => true)
  let conflicts = 2
  const headers: unknown[] = []
  const consume = async (job: Job<Consumed>, tx: Tx) => {
    headers.push(structuredClone(job.headers))
    for (let n = job.payload.items.pop(); n !== undefined; n = job.payload.items.pop())
      await tx.query('insert into item values ($1)', [n])
    delete (job.headers as Record<string, unknown>).trace
    if (conflicts-- > 0) await tx.query("do $$ begin raise exception using errcode = '40001'; end $$")
  }
  const plain = pawl.jobs.define('plain', { retry: { attempts: 1 }, tx: consume })
  const parsed = pawl.jobs.define('parsed', { retry: { attempts: 1 }, schema, tx: consume })
  await pawl.jobs.enqueue(plain, { items: [1, 2, 3] }, { headers: { trace: 'a' } })
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(await items()).toEqual([1, 2, 3])
  conflicts = 1
  await pawl.jobs.enqueue(parsed, { items: [4, 5] }, { headers: { trace: 'a' } })
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(await items()).toEqual([1, 2, 3, 4, 5])
  expect(headers).toEqual(Array.from({ length: 5 }, () => ({ trace: 'a' })))
})

test('[J2] a shared handler that changed its payload reruns with the stored one', async () => {
  await db.query('create table item (n integer)')
  let failures = 1
  pawl.jobs.define<Consumed>('consume', {
    share: 10,
    tx: async (job, tx) => {
      for (let n = job.payload.items.pop(); n !== undefined; n = job.payload.items.pop())
        await tx.query('insert into item values ($1)', [n])
      if (job.headers.fails === true && failures-- > 0) throw new Error('a neighbour fails once')
    },
  })
  await pawl.jobs.enqueueMany('consume', [{ items: [1, 2] }, { items: [3, 4] }])
  await pawl.jobs.enqueue('consume', { items: [5, 6] }, { headers: { fails: true } })
  const report = await runAll(pawl)
  expect(report.done).toHaveLength(3)
  expect(failures).toBeLessThan(1)
  expect(await items()).toEqual([1, 2, 3, 4, 5, 6])
})

test('[J19] an upgrade may be a promise', async () => {
  await db.query(`select pawl.enqueue('mail', '{"address": "a@b.c"}')`)
  const seen: unknown[] = []
  pawl.jobs.define<{ to: string }>('mail', {
    payloadVersion: 2,
    schema: z.object({ to: z.string() }),
    upgrade: async (payload) => ({ to: (payload as { address: string }).address }),
    run: (job) => void seen.push(job.payload),
  })
  expect((await runAll(pawl)).done).toHaveLength(1)
  expect(seen).toEqual([{ to: 'a@b.c' }])
})

test('[J19] a SQL integer that a number cannot hold makes its job dead', async () => {
  const seen: unknown[] = []
  pawl.jobs.define('counts', { run: (job) => void seen.push(job.payload) })
  await db.query(`select pawl.enqueue('counts', '{"lines": [{"id": 12345678901234567890}]}')`)
  await db.query(`select pawl.enqueue('counts', '{"id": 1e400}')`)
  await db.query(`select pawl.enqueue('counts', '{"id": "12345678901234567890", "share": 0.33333333333333333333, "n": 1e22}')`)
  const report = await runAll(pawl)
  expect(report.dead.map(({ reason }) => reason).sort()).toEqual([
    expect.stringMatching(/payload\.id is 10{19}\.\.\. \(401 characters\), which a JavaScript number cannot represent exactly/),
    expect.stringContaining('payload.lines[0].id is 12345678901234567890'),
  ])
  expect(seen).toEqual([{ id: '12345678901234567890', share: 1 / 3, n: 1e22 }])
})
