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

const idsOf = ({ items }: { readonly items: readonly { id: string }[] }) => items.map(({ id }) => id)

test('pages are newest first, and the last has no next', async () => {
  const { ids } = await pawl.jobs.enqueueMany('mail', [1, 2, 3, 4, 5])
  const newest = ids.toReversed()
  const first = await pawl.jobs.list({ limit: 2 })
  expect(idsOf(first)).toEqual(newest.slice(0, 2))
  const second = await pawl.jobs.list({ limit: 2, after: first.next! })
  expect(idsOf(second)).toEqual(newest.slice(2, 4))
  const third = await pawl.jobs.list({ limit: 2, after: second.next! })
  expect({ ids: idsOf(third), next: third.next }).toEqual({ ids: newest.slice(4), next: null })
  expect((await pawl.jobs.list({ limit: 5 })).next).toBeNull()
  expect(await pawl.jobs.list({ after: ids[0]! })).toEqual({ items: [], next: null })
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
  expect((await pawl.jobs.list()).items.map(({ id, state }) => [id, state])).toEqual([
    [later.id, 'scheduled'],
    [ready.id, 'ready'],
    [broken.id, 'dead'],
  ])
  expect((await pawl.jobs.list({ state: 'dead' })).items).toEqual([
    expect.objectContaining({ id: broken.id, lastError: expect.stringContaining('never works'), finishedAt: null }),
  ])
  expect((await pawl.jobs.list({ state: 'done' })).items).toEqual([
    expect.objectContaining({ id: fine.id, runAt: null, finishedAt: expect.any(Date) }),
  ])
  expect(idsOf(await pawl.jobs.list({ state: 'cancelled' }))).toEqual([cancelled.id])
  expect(idsOf(await pawl.jobs.list({ kind: 'broken' }))).toEqual([broken.id])
  expect(idsOf(await pawl.jobs.list({ queue: 'slow' }))).toEqual([later.id])
})
