import { moveClock } from 'pawl/testing'
import type pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { type OnceAnswer, type OnceKey, once } from './once.ts'

let db: TestDatabase
beforeEach(async () => {
  db = await createDatabase()
  await db.query('create table effect (n serial, who text)')
})
afterEach(() => db.drop())

const payment: OnceKey = { namespace: 'payment', key: 'invoice 7' }

async function inTransaction<T>(work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    const result = await work(client)
    await client.query('commit')
    return result
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

/** Writes an effect and gives who wrote it. */
function pay(who: string, key: OnceKey = payment): Promise<OnceAnswer<{ by: string }>> {
  return inTransaction((client) =>
    once(client, key, async () => {
      await client.query('insert into effect (who) values ($1)', [who])
      return { by: who }
    }),
  )
}

async function effects(): Promise<string[]> {
  return (await db.query<{ who: string }>('select who from effect order by n')).map(({ who }) => who)
}

/** Until this number of sessions of this database wait for a lock. */
function waiting(count: number): Promise<unknown> {
  return until(`${count} wait for a lock`, async () => {
    const [row] = await db.query<{ n: number }>(
      "select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
    )
    return row!.n === count
  })
}

test('a second caller gets the first result; the effect happens once', async () => {
  expect(await pay('first')).toEqual({ isFirst: true, result: { by: 'first' } })
  expect(await pay('second')).toEqual({ isFirst: false, result: { by: 'first' } })
  expect(await effects()).toEqual(['first'])
})

test('another tenant, namespace or key is another key', async () => {
  await pay('one')
  await pay('two', { ...payment, tenant: 'acme' })
  await pay('three', { ...payment, namespace: 'refund' })
  await pay('four', { ...payment, key: 'invoice 8' })
  expect(await effects()).toEqual(['one', 'two', 'three', 'four'])
})

test('a key whose transaction rolled back is free', async () => {
  await expect(
    inTransaction((client) =>
      once(client, payment, async () => {
        await client.query("insert into effect (who) values ('gone')")
        throw new Error('no')
      }),
    ),
  ).rejects.toThrow('no')
  expect(await pay('second')).toMatchObject({ isFirst: true })
  expect(await effects()).toEqual(['second'])
})

test('concurrent callers wait for the running one and get its result', async () => {
  const goOn = deferred()
  const running = deferred()
  const first = inTransaction((client) =>
    once(client, payment, async () => {
      running.resolve()
      await goOn.promise
      return { by: 'first' }
    }),
  )
  await running.promise
  const others = Array.from({ length: 5 }, (_, index) => pay(`other ${index}`))
  await waiting(5)
  goOn.resolve()
  expect(await first).toEqual({ isFirst: true, result: { by: 'first' } })
  for (const other of await Promise.all(others)) expect(other).toEqual({ isFirst: false, result: { by: 'first' } })
  expect(await effects()).toEqual([])
})

test('when the running one rolls back, exactly one waiter runs instead', async () => {
  const goOn = deferred()
  const running = deferred()
  const first = inTransaction((client) =>
    once(client, payment, async () => {
      running.resolve()
      await goOn.promise
      throw new Error('rolled back')
    }),
  )
  await running.promise
  const others = Array.from({ length: 5 }, (_, index) => pay(`other ${index}`))
  await waiting(5)
  goOn.resolve()
  await expect(first).rejects.toThrow('rolled back')
  const answers = await Promise.all(others)
  expect(answers.filter((answer) => answer.isFirst)).toHaveLength(1)
  expect(await effects()).toEqual([answers[0]!.result.by])
  for (const answer of answers) expect(answer.result).toEqual(answers[0]!.result)
})

test('an expired key, by database time, is taken by exactly one caller', async () => {
  const hour = { ...payment, ttl: '1h' }
  await pay('first', hour)
  await moveClock(db.pool, 59 * 60_000)
  expect(await pay('early', hour)).toEqual({ isFirst: false, result: { by: 'first' } })
  await moveClock(db.pool, 61 * 60_000)
  const goOn = deferred()
  const running = deferred()
  const late = inTransaction((client) =>
    once(client, hour, async () => {
      running.resolve()
      await goOn.promise
      return { by: 'late' }
    }),
  )
  await running.promise
  const others = Array.from({ length: 5 }, (_, index) => pay(`other ${index}`, hour))
  await waiting(5)
  goOn.resolve()
  expect(await late).toEqual({ isFirst: true, result: { by: 'late' } })
  for (const other of await Promise.all(others)) expect(other).toEqual({ isFirst: false, result: { by: 'late' } })
  expect(await effects()).toEqual(['first'])
  // It is remembered as long as the first time.
  await moveClock(db.pool, 120 * 60_000)
  expect((await pay('early again', hour)).isFirst).toBe(false)
  await moveClock(db.pool, 122 * 60_000)
  expect((await pay('late again', hour)).isFirst).toBe(true)
})

test('callers that find a key expired at once: exactly one takes it', async () => {
  await pay('first', { ...payment, ttl: 1 })
  await moveClock(db.pool, 60_000)
  let found = 0
  const answers = await Promise.all(
    Array.from({ length: 4 }, (_, index) =>
      inTransaction((client) => {
        const tx = {
          query: async (text: string, values: unknown[]) => {
            // The third statement of each takes the expired key: all four are held here until each has seen that it is.
            const sent = String(values[0])
            if (sent.startsWith('update') && sent.includes('expires_at') && ++found <= 4)
              await until('all four have found it', () => found >= 4)
            return client.query(text, values)
          },
        }
        return once(tx, payment, () => ({ by: `late ${index}` }))
      }),
    ),
  )
  expect(found).toBe(4)
  expect(answers.filter((answer) => answer.isFirst)).toHaveLength(1)
  expect(new Set(answers.map((answer) => answer.result.by)).size).toBe(1)
})

test('an expired key whose new run rolls back goes to the waiter', async () => {
  await pay('first', { ...payment, ttl: 1 })
  await moveClock(db.pool, 60_000)
  const goOn = deferred()
  const running = deferred()
  const second = inTransaction((client) =>
    once(client, payment, async () => {
      running.resolve()
      await goOn.promise
      throw new Error('rolled back')
    }),
  )
  await running.promise
  const third = pay('third')
  await waiting(1)
  goOn.resolve()
  await expect(second).rejects.toThrow('rolled back')
  expect(await third).toEqual({ isFirst: true, result: { by: 'third' } })
})

test('many rounds of a race on fresh keys: one effect a key', async () => {
  for (let round = 0; round < 30; round++) {
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, index) => pay(`${round} ${index}`, { namespace: 'race', key: `${round}` })),
    )
    expect(answers.filter((answer) => answer.isFirst)).toHaveLength(1)
  }
  expect(await effects()).toHaveLength(30)
})

test('no result is stored as null; names too long are refused', async () => {
  await inTransaction((client) => once(client, payment, () => undefined))
  expect(await inTransaction((client) => once<unknown>(client, payment, () => 1))).toEqual({ isFirst: false, result: null })
  const sent: string[] = []
  const tx = {
    query: async (text: string) => {
      sent.push(text)
      return { rows: [] }
    },
  }
  await expect(once(tx, { namespace: '', key: 'k' }, () => 1)).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  await expect(once(tx, { namespace: 'n', key: 'k'.repeat(501) }, () => 1)).rejects.toMatchObject({ code: 'PAWL_CONFIG' })
  const refusing = { query: () => Promise.reject(new Error('It was sent.')) }
  await expect(once(refusing, wide(126), () => 1)).rejects.toMatchObject({
    code: 'PAWL_CONFIG',
    message: expect.stringContaining('at most 2500 bytes together, got 2504'),
  })
  expect(sent).toEqual([])
  expect(await inTransaction((client) => once(client, wide(125), () => 1))).toMatchObject({ isFirst: true })
})

test('[J30] a result that JSON cannot carry is refused with its path', async () => {
  const bad = { map: new Map([[1, 2]]), nan: Number.NaN, fn: () => 1, text: 'x'.repeat(1_048_577), bytes: new Blob(['x']) }
  for (const [field, value] of Object.entries(bad))
    await expect(inTransaction((client) => once<unknown>(client, payment, () => ({ [field]: value })))).rejects.toMatchObject({
      code: 'PAWL_INVALID_PAYLOAD',
      message: expect.stringContaining("The result under once key 'invoice 7': result"),
      ...(field !== 'text' && { details: { path: `.${field}`, reason: expect.any(String) } }),
    })
  expect(await pay('after all')).toMatchObject({ isFirst: true })
})

test('[J30] the first caller gets the result as all later ones do', async () => {
  const give = () => inTransaction((client) => once<unknown>(client, payment, () => ({ at: new Date(0), absent: undefined })))
  const result = { at: '1970-01-01T00:00:00.000Z' }
  expect(await give()).toStrictEqual({ isFirst: true, result })
  expect(await give()).toStrictEqual({ isFirst: false, result })
})
/** A key of characters that take four bytes each and that no compression makes shorter; the namespace has this many. */
function wide(characters: number): { namespace: string; key: string } {
  const text = (length: number) =>
    Array.from({ length }, () => String.fromCodePoint(0x20000 + Math.floor(Math.random() * 0xa000))).join('')
  return { namespace: text(characters), key: text(500) }
}
