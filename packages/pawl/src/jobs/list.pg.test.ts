// list(): a page of jobs, newest first.

import { NonRetryable, type Pawl } from 'pawl'
import { runAll } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

const idsOf = (jobs: readonly { id: string }[]) => jobs.map(({ id }) => id)

test('pages of a list are newest first, and before goes on', async () => {
  const { ids } = await pawl.jobs.enqueueMany('mail', [1, 2, 3, 4, 5])
  const newest = ids.toReversed()
  const first = await pawl.jobs.list({ limit: 2 })
  expect(idsOf(first)).toEqual(newest.slice(0, 2))
  const second = await pawl.jobs.list({ limit: 2, before: first.at(-1)!.id })
  expect(idsOf(second)).toEqual(newest.slice(2, 4))
  expect(idsOf(await pawl.jobs.list({ limit: 2, before: second.at(-1)!.id }))).toEqual(newest.slice(4))
  expect(await pawl.jobs.list({ before: ids[0]! })).toEqual([])
})

test('without a state a list has all but done and cancelled jobs', async () => {
  pawl.jobs.define('fine', { run: () => undefined })
  pawl.jobs.define('broken', {
    run: () => {
      throw new NonRetryable('never works')
    },
  })
  const [fine, broken] = [await pawl.jobs.enqueue('fine', {}), await pawl.jobs.enqueue('broken', {})]
  await runAll(pawl)
  const ready = await pawl.jobs.enqueue('fine', {})
  const later = await pawl.jobs.enqueue('fine', {}, { delay: '1h', queue: 'slow' })
  const cancelled = await pawl.jobs.enqueue('fine', {})
  await pawl.jobs.cancel(cancelled.id)
  expect((await pawl.jobs.list()).map(({ id, state }) => [id, state])).toEqual([
    [later.id, 'scheduled'],
    [ready.id, 'ready'],
    [broken.id, 'dead'],
  ])
  expect(await pawl.jobs.list({ state: 'dead' })).toEqual([
    expect.objectContaining({ id: broken.id, lastError: expect.stringContaining('never works'), finishedAt: null }),
  ])
  expect(await pawl.jobs.list({ state: 'done' })).toEqual([
    expect.objectContaining({ id: fine.id, runAt: null, finishedAt: expect.any(Date) }),
  ])
  expect(idsOf(await pawl.jobs.list({ state: 'cancelled' }))).toEqual([cancelled.id])
  expect(idsOf(await pawl.jobs.list({ kind: 'broken' }))).toEqual([broken.id])
  expect(idsOf(await pawl.jobs.list({ queue: 'slow' }))).toEqual([later.id])
})
