// Errors of the engine's own statements and loops that no repetition mends: logged, counted, an alert; and everything else goes on.

import type { Pawl } from 'pawl'
import { installProbe, keeperTesting, type ProbeName } from 'pawl/testing'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import type { LogFields } from '../config.ts'
import { Connection } from '../db/driver.ts'
import { eventMaintenance } from '../events/maintenance.ts'
import { maintenance } from '../jobs/maintenance.ts'
import { resolveConfig } from '../pawl-options.ts'
import type { Worker } from '../worker.ts'
import { Failures } from './alerts.ts'

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
  installProbe(undefined)
  await worker?.stop({ grace: 0 })
  worker = undefined
  await db.drop()
})

async function startWorker(options: Parameters<Pawl['worker']>[0] = {}): Promise<Worker> {
  worker = pawl.worker(options)
  await worker.start()
  return worker
}

const failing = async () => (await pawl.alerts()).filter(({ code }) => code === 'engine.failing')

test('[K17] a promotion that always fails raises an alert; other jobs run', async () => {
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
  const running = await startWorker({ tuning: { beatMs: 100 } })
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

test('[K17] a maintenance chore that fails does not stop the others', async () => {
  await db.query(`insert into pawl.once (tenant, namespace, key, expires_at) values ('', 'test', 'old', pawl.now() - interval '1 day');
    create trigger refuse before delete on pawl.once for each row execute function refuse()`)
  const { database } = resolveConfig({ databaseUrl: db.url })
  const stop = new AbortController()
  const met: unknown[] = []
  const succeeded = new Set<string>()
  const watch = new Failures({ logger: { error: () => undefined } })
  const loop = (name: string) => ({
    succeeded: () => void succeeded.add(name),
    failed: (error: unknown) => void met.push([name, error]),
  })
  const service = maintenance({ database, keepDays: 14, signal: stop.signal, watch, loop })
  for (let round = 0; round < 2; round++) await service.runOnce()
  expect(met).toEqual([['maintenance: pruning', expect.objectContaining({ message: 'refused on purpose' })]])
  expect([...succeeded]).toEqual(['maintenance: old days', 'maintenance: new days'])
})

test('[K17] a rare chore that fails is repeated each round', async () => {
  await db.query(`insert into pawl.once (tenant, namespace, key, expires_at) values ('', 'test', 'old', pawl.now() - interval '1 day');
    create trigger refuse before delete on pawl.once for each row execute function refuse()`)
  const { database } = resolveConfig({ databaseUrl: db.url })
  const stop = new AbortController()
  const rounds: string[] = []
  const pruned = () => rounds.filter((round) => round.endsWith('pruning')).length
  const loop = (name: string) => ({
    succeeded: () => void rounds.push(name),
    failed: () => void rounds.push(`failed ${name}`),
  })
  const watch = new Failures({ logger: { error: () => undefined } })
  const service = maintenance({ database, keepDays: 14, signal: stop.signal, watch, loop })
  for (let round = 0; round < 4; round++) await service.runOnce()
  expect(pruned()).toBe(3)
  expect((await alerted('prune')).message).toContain('refused on purpose')
  await db.query('drop trigger refuse on pawl.once')
  await service.runOnce()
  await until('the alert is resolved', async () => (await failing()).length === 0)
  expect(pruned()).toBe(4)
  for (let round = 0; round < 4; round++) await service.runOnce()
  expect(pruned()).toBe(4)
})

test('[K17] maintenance of events that fails says so in each round', async () => {
  const stop = new AbortController()
  const { database } = resolveConfig({ databaseUrl: db.url })
  await db.query('alter function pawl.is_last_day_used rename to moved')
  const loop = { succeeded: () => undefined, failed: () => undefined }
  const service = eventMaintenance({ database, keepDays: 7, signal: stop.signal, loop })
  await service.runOnce()
  for (let round = 0; round < 3; round++) await expect(service.runOnce()).rejects.toThrow(/is_last_day_used/)
})

test('[K17] broken connections and conflicts are not errors of the engine', () => {
  const seen: unknown[] = []
  const watch = new Failures({ logger: { error: () => undefined }, onError: () => seen.push(1) })
  const connection = new Connection(resolveConfig({ databaseUrl: db.url }).database, 'unused')
  for (const code of ['40001', '55P03', '57P01', '53100', 'ECONNRESET'])
    watch.failed('claim', Object.assign(new Error('no'), { code }), connection)
  expect(seen).toEqual([])
})

/** A bug of ours at this point. */
function plant(at: ProbeName): void {
  installProbe((name) => {
    if (name === at) throw new TypeError('planted')
  })
}

const alerted = (subject: string) =>
  until(`${subject} is alerted`, async () => (await failing()).find((alert) => alert.subject === subject))

test.each([
  ['claim', 'jobs.claim.before'],
  ['settle', 'jobs.settle.before'],
] as const)('[K17] a bug in the %s loop is logged once, counted and alerted', async (loop, at) => {
  pawl.jobs.define('work', { run: () => undefined })
  await pawl.jobs.enqueueMany('work', [1, 2, 3, 4])
  plant(at)
  const running = await startWorker({ tuning: { pollMs: 20 } })
  expect((await alerted(`loop ${loop}`)).message).toMatch(`The engine loop ${loop} failed 3 times in a row: TypeError: planted`)
  expect(running.metrics().errors).toBeGreaterThan(2)
  expect(errors.filter((fields) => fields.loop === `loop ${loop}`)).toHaveLength(1)
  installProbe(undefined)
  const { id } = await pawl.jobs.enqueue('work', 5)
  await until('a job runs', async () => (await pawl.jobs.get(id))?.state === 'done')
  await until('the alert is resolved', async () => (await failing()).length === 0)
})

test('[K17] a liveness lock that is always refused is alerted; jobs run', async () => {
  await db.query(
    'create trigger refuse before update on pawl.worker for each row when (new.locks and not old.locks) execute function refuse()',
  )
  pawl.jobs.define('work', { run: () => undefined })
  await startWorker()
  expect((await alerted('loop listen')).message).toContain('refused on purpose')
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('a job runs', async () => (await pawl.jobs.get(id))?.state === 'done')
  await db.query('drop trigger refuse on pawl.worker')
  await until('the alert is resolved', async () => (await failing()).length === 0)
})

test('[K17] a bug in the keeper thread is counted and alerted', async () => {
  onTestFinished(() => {
    keeperTesting.probeModule = undefined
  })
  keeperTesting.probeModule = new URL('../../test/support/failing-keeper.ts', import.meta.url).href
  pawl.jobs.define('work', { run: () => undefined })
  const running = await startWorker({ tuning: { beatMs: 100 } })
  expect((await alerted('loop look')).message).toContain('TypeError: planted')
  await until('the errors are counted', () => running.metrics().errors > 2)
})

test('[K17] a cursor that cannot move raises an alert, as does a bug', async () => {
  await db.query('create trigger refuse before update of position on pawl.cursor_position for each row execute function refuse()')
  pawl.projections.define('totals', { tables: [], each: () => undefined })
  const runner = pawl.worker({ tuning: { pollMs: 20 } })
  onTestFinished(async () => void (await runner.stop()))
  await runner.start()
  await pawl.events.append({ type: 'Placed', aggregateType: 'order', key: 'one', data: {} })
  expect((await alerted('loop projection totals')).message).toContain('refused on purpose')
  expect(errors.filter(({ loop }) => loop === 'loop projection totals')).toHaveLength(1)
  plant('events.sequence.before')
  expect((await alerted('loop positions')).message).toContain('TypeError: planted')
  installProbe(undefined)
  await db.query('drop trigger refuse on pawl.cursor_position')
  await until('the alerts are resolved', async () => (await failing()).length === 0)
})

test('[K17] an error that its statement and its loop meet counts once', () => {
  const onError = vi.fn()
  const watch = new Failures({ logger: { error: () => undefined }, onError })
  const connection = new Connection(resolveConfig({ databaseUrl: db.url }).database, 'unused')
  const error = Object.assign(new Error('no'), { code: '42501' })
  watch.failed('claim', error, connection)
  watch.loop('claim', connection).failed(error)
  expect(onError).toHaveBeenCalledTimes(1)
})

test('[K17] an alert that failed to be written is written next time', async () => {
  const raised: string[] = []
  const run = (_statement: unknown, { subject }: { subject: string }) => {
    raised.push(subject)
    return raised.length === 1 ? Promise.reject(new Error('no')) : Promise.resolve([])
  }
  const { failed } = new Failures({ logger: { error: () => undefined } }).loop('claim', { run } as unknown as Connection)
  const fail = async () => {
    failed(new TypeError('planted'))
    await new Promise(setImmediate)
  }
  for (let times = 0; times < 3; times++) await fail()
  expect(raised).toHaveLength(1)
  await fail()
  expect(raised).toHaveLength(2)
  await fail()
  expect(raised).toHaveLength(2)
})

test('[K17] a logger that throws stops no loop', async () => {
  const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined)
  onTestFinished(() => warned.mockRestore())
  const throws = () => {
    throw new Error('no log')
  }
  pawl = db.pawl({ logger: { debug: throws, info: throws, warn: throws, error: throws } })
  pawl.jobs.define<{ fails: boolean }>('work', {
    retry: { attempts: 1 },
    run: ({ payload }) => {
      if (payload.fails) throw new Error('planned')
    },
  })
  await startWorker()
  const stateOf = async (id: string) => (await pawl.jobs.get(id))!.state
  for (const [fails, state] of [
    [true, 'dead'],
    [false, 'done'],
  ] as const) {
    const { id } = await pawl.jobs.enqueue('work', { fails })
    await until(`it is ${state}`, async () => (await stateOf(id)) === state)
  }
  await until('its end is told', () => worker!.metrics().unsettled === 0)
  expect(warned.mock.calls).toEqual([[expect.stringContaining('The logger of Pawl throws')]])
})
