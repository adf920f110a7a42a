// What a role that may connect, and nothing else, can do with Pawl's notifications.

import type { Logger, Pawl } from 'pawl'
import pg from 'pg'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from './support/database.ts'
import { append, startRunner } from './support/projections.ts'
import { startWorker } from './support/records.ts'

let db: TestDatabase
let stranger: pg.Client
let role: string
beforeAll(async () => {
  db = await createDatabase()
  role = `stranger_${db.name}`
  await db.query(`create role ${role} login password 'secret'; create table seen (key text)`)
  const url = new URL(db.url)
  url.username = role
  url.password = 'secret'
  stranger = new pg.Client({ connectionString: url.href })
  await stranger.connect()
})
afterAll(async () => {
  await stranger.end()
  await db.query(`drop owned by ${role}; drop role ${role}`)
  await db.drop()
})

/** Everything that Pawl finds worth a warning or an error. */
function complaints(): { logger: Logger; said: unknown[] } {
  const said: unknown[] = []
  const keep = (...what: unknown[]) => void said.push(what)
  return { logger: { debug: () => undefined, info: () => undefined, warn: keep, error: keep }, said }
}

function defineSeen(pawl: Pawl): void {
  pawl.projections.define('seen', {
    tables: [{ name: 'seen', key: ['key'], columns: ['key'] }],
    each: (event, tx) => tx.send('insert into seen values ($1::text)', [event.key]),
  })
}

test('a forged notification causes a poll and nothing else', async () => {
  const { logger, said } = complaints()
  const pawl = db.pawl({ logger })
  const end = deferred()
  let isAborted = false
  pawl.jobs.define<{ hangs: boolean }>('work', {
    run: async (job, { signal }) => {
      if (job.payload.hangs) await end.promise
      isAborted ||= signal.aborted
    },
  })
  defineSeen(pawl)
  const worker = await startWorker(pawl)
  await startRunner(pawl)
  const { id } = await pawl.jobs.enqueue('work', { hangs: true })
  await until('it runs', async () => (await pawl.jobs.get(id))?.state === 'running')
  const forged: [string, string][] = [
    ...['default', 'other', '', 'x'.repeat(7000), '{}'].map((payload): [string, string] => ['pawl_wake', payload]),
    ...[String(worker.id), `${worker.id} `, '0', '-1', 'NaN', ''].map((payload): [string, string] => ['pawl_lost', payload]),
    ...['', 'x', String(worker.id)].map((payload): [string, string] => ['pawl_events', payload]),
  ]
  for (let times = 0; times < 20; times++)
    for (const [channel, payload] of forged) await stranger.query('select pg_notify($1, $2)', [channel, payload])
  // Notifications arrive in order: what these bring is heard after the forged ones.
  const { id: next } = await pawl.jobs.enqueue('work', { hangs: false })
  await append(db, { key: 'a' })
  await until('the next job is done', async () => (await pawl.jobs.get(next))?.state === 'done')
  await until('the event is projected', async () => (await db.query('select from seen')).length === 1)
  expect(await pawl.jobs.get(id)).toMatchObject({ state: 'running', attempt: 1, crashes: 0 })
  end.resolve()
  await until('it is done', async () => (await pawl.jobs.get(id))?.state === 'done')
  expect(await pawl.jobs.get(id)).toMatchObject({ attempt: 1, crashes: 0 })
  expect({ isAborted, said, alerts: await pawl.alerts({ tenant: '*' }) }).toEqual({ isAborted: false, said: [], alerts: [] })
  expect(worker.metrics()).toMatchObject({ done: 2, refused: 0, errors: 0 })
})

test('notifications carry names of queues and numbers of workers', async () => {
  const heard = new Set<string>()
  stranger.on('notification', ({ channel, payload }) => heard.add(`${channel} ${payload}`))
  onTestFinished(() => void stranger.removeAllListeners('notification'))
  await stranger.query('listen pawl_wake; listen pawl_lost; listen pawl_events')
  const pawl = db.pawl()
  pawl.jobs.define('secret kind', { queue: 'letters', run: (_job, { signal }) => until('it is cancelled', () => signal.aborted) })
  defineSeen(pawl)
  const worker = await startWorker(pawl)
  await startRunner(pawl)
  const acme = pawl.for('acme')
  let id = ''
  await until('a sleeping worker is woken', async () => {
    id = (await acme.jobs.enqueue('secret kind', { secret: 1 }, { queue: 'letters' })).id
    await acme.events.append({ type: 'secret', aggregateType: 'secret', key: 'secret', data: 'secret' })
    await until('it runs', async () => (await acme.jobs.get(id))?.state === 'running')
    await acme.jobs.cancel(id, { reason: 'secret' })
    return heard.size >= 3
  })
  expect([...heard].sort()).toEqual(['pawl_events ', `pawl_lost ${worker.id}`, 'pawl_wake letters'])
  await expect(stranger.query('select 1 from pawl.job')).rejects.toMatchObject({ code: '42501' })
})
