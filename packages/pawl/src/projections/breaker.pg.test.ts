// The breaker, and forgetting a cursor whose definition is gone.

import { NonRetryable } from 'pawl'
import { expect, onTestFinished, test } from 'vitest'
import { until } from '../../test/support/database.ts'
import { append, caughtUp, createLog, cursorOf, startRunner } from '../../test/support/projections.ts'
import { Connection } from '../db/driver.ts'
import type { Statement } from '../db/statement.ts'

const breaker = { keys: 5, within: '1h' } as const
const keys = Array.from({ length: 20 }, (_, n) => `k${String(n).padStart(2, '0')}`)

test.each(['log', 'state', 'sink'] as const)(
  '[P10] after many parked keys a %s cursor pauses and loses nothing',
  async (kind) => {
    const db = await createLog()
    const pawl = db.pawl()
    let isBad = true
    const applied = new Set<string>()
    const handle = (key: string) => {
      if (isBad) throw new NonRetryable('a bad deploy')
      applied.add(key)
    }
    if (kind === 'sink') pawl.projections.sink('p', { breaker, concurrency: 1, handle: ({ key }) => handle(key) })
    else if (kind === 'log') pawl.projections.define('p', { breaker, each: ({ key }) => handle(key) })
    else {
      pawl.projections.define('p', { kind: 'state', breaker, concurrency: 1, entity: ({ key }) => key, refresh: handle })
    }
    await append(db, ...keys.map((key) => ({ key })))
    await startRunner(pawl)
    await until('it is paused', async () => (await cursorOf(db, 'p')).state === 'paused')
    const parked = (await pawl.projections.parked('p')).items
    // A sink hears of its pause with its next store.
    expect(parked.length).toBeLessThanOrEqual(kind === 'sink' ? 7 : 5)
    expect(await pawl.alerts()).toMatchObject([
      { code: 'projection.breaker', subject: 'p', count: 1 },
      { code: 'projection.parked', subject: 'p', count: parked.length },
    ])
    expect((await cursorOf(db, 'p')).reason).toMatch(/^5 keys have been parked since /)
    isBad = false
    await pawl.projections.resume('p', { reason: 'the deploy was taken back' })
    await pawl.projections.unpark('p', { reason: 'the deploy was taken back' })
    await until('every key was applied', () => applied.size === keys.length)
    await caughtUp(db, 'p')
    await until('no key is parked', async () => (await pawl.projections.parked('p')).items.length === 0)
    expect((await cursorOf(db, 'p')).state).toBe('running')
    expect(await pawl.alerts()).toEqual([])
  },
)

test('[P10] keys parked before a resume do not trip the breaker', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.define('p', {
    breaker,
    each: () => {
      throw new NonRetryable('bad')
    },
  })
  await startRunner(pawl)
  for (let round = 0; round < 2; round++) {
    await append(db, ...keys.slice(round * 5, round * 5 + 5).map((key) => ({ key })))
    await until('it is paused', async () => (await cursorOf(db, 'p')).state === 'paused')
    await pawl.projections.resume('p', { reason: 'a test' })
  }
  const first = await pawl.projections.parked('p', { limit: 6 })
  const second = await pawl.projections.parked('p', { limit: 6, after: first.next! })
  expect([...first.items, ...second.items].map(({ key }) => key)).toEqual(keys.slice(0, 10))
  expect(second.next).toBeNull()
  expect((await pawl.projections.parked('p', { limit: 10 })).next).toBeNull()
})

test('[P10] a cursor without a definition is forgotten and holds nothing back', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  pawl.projections.sink('gone', {
    handle: () => {
      throw new NonRetryable('no')
    },
  })
  const runner = await startRunner(pawl)
  await append(db, { key: 'a' }, { key: 'b' })
  await until('both are parked', async () => (await pawl.projections.parked('gone')).items.length === 2)
  await expect(pawl.projections.forget('gone', { reason: 'not used' })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(
      /^'gone' is still defined by running processes: .+ \(worker \d+\)\. Remove it from their code/,
    ),
  })
  await runner.stop()
  expect((await pawl.events.whoHoldsBack()).map(({ what }) => what)).toContain('parked key')
  await pawl.projections.forget('gone', { reason: 'not used', by: 'ann' })
  expect(await pawl.events.whoHoldsBack()).toEqual([])
  expect(await pawl.projections.status('gone')).toEqual([])
  expect(await db.query('select actor, action, subject, reason from pawl.audit')).toEqual([
    { actor: 'ann', action: 'projection.forget', subject: 'gone', reason: 'not used' },
  ])
  await expect(pawl.projections.forget('gone', { reason: 'again' })).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test("[P10] a projection forgotten during its runner's start is created again and runs", async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: string[] = []
  pawl.projections.sink('p', { handle: ({ key }) => void got.push(key) })
  await (await startRunner(pawl)).stop()
  let isForgotten = false
  const { run } = Connection.prototype
  onTestFinished(() => {
    Connection.prototype.run = run
  })
  // The runner has found its rows, and has no incarnation yet.
  Connection.prototype.run = async function (this: Connection, sent: Statement, values) {
    if (sent.name === 'configure' && !isForgotten) {
      isForgotten = true
      await pawl.projections.forget('p', { reason: 'a test' })
    }
    return run.call(this, sent, values) as never
  }
  await startRunner(pawl)
  await append(db, { key: 'a' })
  await until('it was handed over', () => got.length === 1)
  expect(isForgotten).toBe(true)
})
