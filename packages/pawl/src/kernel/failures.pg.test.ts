// Errors of the engine's own statements that no repetition mends: logged, counted, an alert; and everything else goes on.

import type { Pawl } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import type { LogFields } from '../config.ts'
import { Connection } from '../db/driver.ts'
import { maintain } from '../jobs/maintenance.ts'
import type { Worker } from '../jobs/worker.ts'
import { resolveConfig } from '../pawl-options.ts'
import { Failures } from './failures.ts'

let db: TestDatabase
let pawl: Pawl
let errors: LogFields[]
let worker: Worker | undefined
beforeEach(async () => {
  db = await createDatabase()
  errors = []
  const nothing = () => undefined
  pawl = db.pawl({ logger: { debug: nothing, info: nothing, warn: nothing, error: (fields) => errors.push(fields) } })
  await db.query(`create function refuse() returns trigger language plpgsql as
    $$ begin raise exception 'refused on purpose' using errcode = '22000'; end $$`)
})
afterEach(async () => {
  await worker?.stop({ grace: 0 })
  worker = undefined
  await db.drop()
})

async function startWorker(options: Parameters<Pawl['jobs']['worker']>[0] = {}): Promise<Worker> {
  worker = pawl.jobs.worker(options)
  await worker.start()
  return worker
}

const failing = async () => (await pawl.alerts()).filter(({ code }) => code === 'engine.failing')

test('[K17] a promotion that always fails is logged, counted and alerted; other jobs run', async () => {
  await db.query(
    `create trigger refuse before update on pawl.job for each row when (old.state = 'scheduled') execute function refuse()`,
  )
  pawl.jobs.define('work', { run: () => undefined })
  const running = await startWorker()
  const delayed = await pawl.jobs.enqueue('work', {}, { delay: 1 })
  await until('there is an alert', async () => (await failing()).length === 1)
  expect(await failing()).toMatchObject([{ subject: 'promote', message: expect.stringContaining('refused on purpose') }])
  const ready = await pawl.jobs.enqueue('work', {})
  await until('another job runs', async () => (await pawl.jobs.get(ready.id))?.state === 'done')
  expect(running.metrics().errors).toBeGreaterThan(2)
  expect(errors.filter(({ statement }) => statement === 'promote')).toHaveLength(1)
  await db.query('drop trigger refuse on pawl.job')
  await until('the delayed one runs', async () => (await pawl.jobs.get(delayed.id))?.state === 'done')
  await until('the alert is resolved', async () => (await failing()).length === 0)
})

test('[K17] a sweep of the keeper that always fails is alerted too', async () => {
  pawl.jobs.define('work', { run: () => undefined })
  const running = await startWorker({ beatMs: 100 })
  await db.query(`create trigger refuse before update on pawl.worker for each row when (new.asked_by is not null) execute function refuse();
    insert into pawl.worker (lease_until) values (pawl.now() - interval '1 hour')`)
  await until('there is an alert', async () => (await failing()).length === 1)
  await until('the errors are counted', () => running.metrics().errors > 2)
  expect(errors.filter(({ statement }) => statement === 'ask-workers')).toHaveLength(1)
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('jobs run', async () => (await pawl.jobs.get(id))?.state === 'done')
  await db.query('drop trigger refuse on pawl.worker')
  await until('the alert is resolved', async () => (await failing()).length === 0)
})

test('[K17] one chore of the maintenance that fails keeps none of the others back', async () => {
  await db.query(
    `create trigger refuse before insert on pawl.alert for each row when (new.code = 'kind.unknown') execute function refuse()`,
  )
  await db.query("select pawl.raise_alert('', 'job.dead', 'work', 'none of them is left')")
  await pawl.jobs.enqueue('nobody runs this', {})
  // An id carries the time of its making.
  await db.query('update pawl.job set id = id - (600000::bigint << 21)')
  const { database } = resolveConfig({ databaseUrl: db.url })
  const stop = new AbortController()
  const met: unknown[] = []
  const watch = new Failures({ logger: { error: () => undefined } })
  const onTrouble = (error: unknown) => void met.push(error)
  const done = maintain({ database, queues: ['default'], keepDays: 14, signal: stop.signal, watch, onTrouble })
  await until('the alert of no dead job is resolved', async () => (await pawl.alerts()).length === 0)
  expect(met).toHaveLength(1)
  stop.abort()
  await done
})

test('[K17] broken connections and conflicts are not errors of the engine', () => {
  const seen: unknown[] = []
  const watch = new Failures({ logger: { error: () => undefined }, onError: () => seen.push(1) })
  const connection = new Connection(resolveConfig({ databaseUrl: db.url }).database, 'unused')
  for (const code of ['40001', '55P03', '57P01', '53100', 'ECONNRESET'])
    watch.failed('claim', Object.assign(new Error('no'), { code }), connection)
  expect(seen).toEqual([])
})
