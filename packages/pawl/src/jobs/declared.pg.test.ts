// Kinds without handlers: a process that only enqueues has the kind and its types, and the worker's process has the handler.

import type { Job, Kind, Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterAll, beforeAll, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
})
afterAll(() => db.drop())

const schema = z.object({ to: z.string(), at: z.coerce.date() })
const declare = (pawl: Pawl) => pawl.jobs.define('mail', { schema, queue: 'mail' })

test('what a kind without a handler enqueues, another process runs', async () => {
  const web = db.pawl()
  const mail = declare(web)
  const { id } = await web.jobs.enqueue(mail, { to: 'ada', at: '2030-01-01' })
  await expect(web.jobs.enqueue(mail, { to: 5 } as never)).rejects.toMatchObject({ code: 'PAWL_INVALID_PAYLOAD' })

  const worker = db.pawl()
  const sent: unknown[] = []
  worker.jobs.handle(declare(worker), { run: ({ payload, queue }) => sent.push([payload, queue]) })
  expect((await runAll(worker)).done).toMatchObject([{ id, kind: 'mail' }])
  expect(sent).toEqual([[{ to: 'ada', at: new Date('2030-01-01') }, 'mail']])
})

test('a worker claims no kind that has no handler in its process', async () => {
  const pawl = db.pawl()
  const left = pawl.jobs.define('left', { queue: 'mixed' })
  const done = pawl.jobs.define('done', { queue: 'mixed', tx: () => 1 })
  const jobs = [await pawl.jobs.enqueue(left, {}), await pawl.jobs.enqueue(done, {})]
  const worker = pawl.worker()
  expect(worker.kinds).toEqual(['done'])
  expect(await runAll(pawl)).toMatchObject({ done: [{ id: jobs[1]!.id }], dead: [], retrying: [] })
  expect(await pawl.jobs.get(jobs[0]!.id)).toMatchObject({ state: 'ready', attempt: 0 })
})

test('a worker whose kinds all lack a handler is refused by name', () => {
  const pawl = db.pawl()
  expect(() => pawl.worker()).toThrow(
    'This worker has nothing to do: define at least one kind or projection before you create it.',
  )
  pawl.jobs.define('a')
  declare(pawl)
  expect(() => pawl.worker()).toThrow(
    /^This worker has nothing to do: no kind has a handler in this process: a, mail\. Import the module/,
  )
})

test('a handler without a kind, a second one or none is refused', () => {
  const pawl = db.pawl()
  const run = () => undefined
  const mail = declare(pawl)
  expect(() => pawl.jobs.handle({ name: 'male', queue: 'mail' }, { run })).toThrow(
    "handle: kind must be one that this Pawl defines, got 'male'. Call define('male', ...) first.",
  )
  const cases: [object, string][] = [
    [{}, "handle('mail'): give a handler: run or tx."],
    [{ run, tx: run }, "handle('mail'): give a handler: either run or tx, not both."],
    [{ run, share: 5 }, "handle('mail'): share is for tx handlers: leave it out, or use tx in place of run."],
    [{ run, queue: 'x' }, "handle('mail') has no option 'queue'. Its options are run, tx, share."],
  ]
  for (const [handler, message] of cases) expect(() => pawl.jobs.handle(mail, handler as never)).toThrow(message)
  pawl.jobs.handle(mail, { run })
  expect(() => pawl.jobs.handle(mail, { run })).toThrow("The kind 'mail' already has a handler. Give each kind one handler.")
  expect(() => pawl.jobs.handle(pawl.jobs.define('whole', { run }), { run })).toThrow(/already has a handler/)
})

test('the types of a declared kind reach its handler and its callers', () => {
  const pawl = db.pawl()
  const mail = declare(pawl)
  expectTypeOf(mail).toEqualTypeOf<Kind<{ to: string; at: unknown }, { to: string; at: Date }>>()
  const plain = pawl.jobs.define<{ page: number }>('plain')
  pawl.jobs.handle(plain, { run: (job) => expectTypeOf(job).toEqualTypeOf<Job<{ page: number }>>() })
  // @ts-expect-error page is a number.
  const wrong = () => pawl.jobs.enqueue(plain, { page: 'one' })
  expect(wrong).toBeTypeOf('function')
})
