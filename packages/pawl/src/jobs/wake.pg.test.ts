// Pick-up: a job is found when its transaction commits, however long that stayed open and whatever the worker did in that time. The poll is
// set to an hour here, so only the notification or the watch over open transactions can find it.

import { type Pawl, silentLogger } from 'pawl'
import { installProbe } from 'pawl/testing'
import type pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createDatabase, deferred, type TestDatabase, until } from '../../test/support/database.ts'
import { asHolder, openIncarnation } from '../../test/support/incarnation.ts'
import { Connection } from '../db/driver.ts'
import type { Parameter, Statement } from '../db/statement.ts'
import { leaseStatements, lockClass } from '../kernel/lease.ts'
import { Sleep } from '../kernel/service.ts'
import type { Worker } from '../worker.ts'
import { prune } from './maintenance.ts'

const noPollMs = 3_600_000
/** Two seconds in a full run: as long as the promise says. */
const openMs = process.env.PAWL_FULL === undefined ? 300 : 2000

let db: TestDatabase
let pawl: Pawl
let ran: string[]
let busy: ReturnType<typeof deferred<void>>
const workers: Worker[] = []
const clients: pg.PoolClient[] = []
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  ran = []
  busy = deferred()
  pawl.jobs.define<{ waits?: boolean }>('work', {
    run: async (job) => {
      ran.push(job.id)
      if (job.payload.waits) await busy.promise
    },
  })
})
afterEach(async () => {
  installProbe(undefined)
  busy.resolve()
  await Promise.all(workers.splice(0).map((worker) => worker.stop()))
  for (const client of clients.splice(0)) client.release()
  await db.drop()
})

async function startWorker(options: Parameters<Pawl['worker']>[0] = {}): Promise<Worker> {
  const worker = pawl.worker({ ...options, tuning: { pollMs: noPollMs, ...options.tuning } })
  workers.push(worker)
  await worker.start()
  return worker
}

async function connect(): Promise<pg.PoolClient> {
  const client = await db.pool.connect()
  clients.push(client)
  return client
}

/** Asleep: the flag is committed, and the worker listens. */
async function asleep(worker: Worker): Promise<void> {
  await until('it sleeps', async () => {
    const [row] = await db.query<{ is_asleep: boolean }>(
      `select exists (select from pawl.sleeper where worker = $1)
         and exists (select from pg_stat_activity where datname = current_database() and application_name = 'pawl listen' and state = 'idle'
           and query not in ('', 'listen pawl_wake')) as is_asleep`,
      [worker.id],
    )
    return row?.is_asleep
  })
}

/** The transaction stays open after its enqueue, by the database's own time. */
async function stayOpen(client: pg.PoolClient): Promise<void> {
  await client.query('select pg_sleep($1)', [openMs / 1000])
}

for (const level of ['read committed', 'repeatable read', 'serializable'] as const) {
  describe(level, () => {
    test('[J23] a job whose transaction commits long into the sleep is picked up', async () => {
      const worker = await startWorker()
      await asleep(worker)
      const client = await connect()
      await client.query(`begin isolation level ${level}`)
      const { id } = await pawl.jobs.enqueue('work', {}, { tx: client })
      await stayOpen(client)
      expect(ran).toEqual([])
      await client.query('commit')
      await until('it is picked up', () => ran.includes(id))
    })

    test("[J23] a job whose commit follows the worker's falling asleep is picked up", async () => {
      await pawl.jobs.enqueue('work', { waits: true })
      const worker = await startWorker({ concurrency: 1 })
      await until('it is busy', () => ran.length === 1)
      expect(await db.query('select from pawl.sleeper')).toHaveLength(0)
      const client = await connect()
      await client.query(`begin isolation level ${level}`)
      const { id } = await pawl.jobs.enqueue('work', {}, { tx: client })
      busy.resolve()
      await asleep(worker)
      await stayOpen(client)
      expect(ran).toHaveLength(1)
      await client.query('commit')
      await until('it is picked up', () => ran.includes(id))
    })

    test('[J23] a snapshot older than the sleep flag does not hide it', async () => {
      await pawl.jobs.enqueue('work', { waits: true })
      const worker = await startWorker({ concurrency: 1 })
      await until('it is busy', () => ran.length === 1)
      const client = await connect()
      await client.query(`begin isolation level ${level}`)
      await client.query('select count(*) from pawl.sleeper')
      busy.resolve()
      await asleep(worker)
      const { id } = await pawl.jobs.enqueue('work', {}, { tx: client })
      await stayOpen(client)
      await client.query('commit')
      await until('it is picked up', () => ran.includes(id))
    })
  })
}

test('[J23] an enqueue that read the flag just before it was set runs', async () => {
  const client = await connect()
  const enqueued = deferred<string>()
  installProbe(async (name) => {
    // The flag is committed, the list of open transactions is not read yet: an enqueue until now may have seen no flag.
    if (name !== 'jobs.sleep.flagged') return
    installProbe(undefined)
    await db.query('delete from pawl.sleeper')
    await client.query('begin')
    enqueued.resolve((await pawl.jobs.enqueue('work', {}, { tx: client })).id)
    await db.query("insert into pawl.sleeper (queue, worker) select 'default', max(id) from pawl.worker")
  })
  await startWorker()
  const id = await enqueued.promise
  await stayOpen(client)
  await client.query('commit')
  await until('it is picked up', () => ran.includes(id))
})

test('[J23] a worker whose liveness lock is held elsewhere hears of jobs', async () => {
  const said: string[] = []
  const heard: string[] = []
  const own = db.pawl({ logger: { ...silentLogger, warn: (_fields, message) => said.push(message) } })
  own.jobs.define('work', { run: (job) => void heard.push(job.id) })
  const before = await connect()
  await before.query('select pg_advisory_lock($1::integer, 1)', [lockClass])
  const worker = own.worker({ tuning: { pollMs: noPollMs } })
  workers.push(worker)
  await worker.start()
  expect(worker.id).toBe(1)
  await until('it says so', () => said.some((message) => message.includes('liveness lock')))
  await asleep(worker)
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('it ran', () => heard.includes(id))
  await before.query('select pg_advisory_unlock_all()')
})

test('[J23] after an enqueue rolled back, the next is still picked up', async () => {
  const worker = await startWorker()
  await asleep(worker)
  const client = await connect()
  await client.query('begin')
  await pawl.jobs.enqueue('work', {}, { tx: client })
  await client.query('rollback')
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('the next is picked up', () => ran.includes(id))
  expect(ran).toEqual([id])
})

test('[J23] each job enqueued after the worker fell asleep is picked up', async () => {
  const worker = await startWorker()
  for (let n = 0; n < 20; n++) {
    await asleep(worker)
    const { id } = await pawl.jobs.enqueue('work', {})
    await until(`number ${n} is picked up`, () => ran.includes(id))
  }
})

test("[J23] a stranger's open transaction does not delay other jobs", async () => {
  const stranger = await connect()
  await stranger.query('begin')
  await stranger.query('create table strange (id integer)')
  const worker = await startWorker()
  await asleep(worker)
  const { id } = await pawl.jobs.enqueue('work', {})
  await until('it is picked up', () => ran.includes(id))
  await stranger.query('rollback')
})

test('[J23] a prepared transaction that enqueues without wake-up is polled', async () => {
  const worker = await startWorker({ tuning: { pollMs: 100 } })
  await asleep(worker)
  const client = await connect()
  await client.query('begin')
  const { id } = await pawl.jobs.enqueue('work', {}, { tx: client, wake: false })
  await client.query("prepare transaction 'pawl j23'")
  expect(ran).toEqual([])
  await client.query("commit prepared 'pawl j23'")
  await until('it is picked up', () => ran.includes(id))
})

test('[J23] a prepared transaction can cancel and retry without a wake-up', async () => {
  const isFree = deferred()
  pawl.jobs.define('held', { run: () => isFree.promise })
  const worker = await startWorker({ tuning: { pollMs: 100, beatMs: 100 } })
  const held = await pawl.jobs.enqueue('held', {})
  const later = await pawl.jobs.enqueue('work', {}, { delay: '1h' })
  await until('it runs', async () => (await pawl.jobs.get(held.id))?.state === 'running')
  await asleep(worker)
  const client = await connect()
  await client.query('begin')
  await pawl.jobs.cancel(held.id, { tx: client, wake: false })
  await pawl.jobs.retry(later.id, { tx: client, wake: false })
  await client.query("prepare transaction 'pawl j23 changes'")
  await client.query("commit prepared 'pawl j23 changes'")
  await until('the other is picked up', () => ran.includes(later.id))
  await until('the loss is noticed', () => worker.metrics().running === 0)
  isFree.resolve()
})

test('[J23] by plain SQL a prepared transaction must enqueue without wake-up', async () => {
  const worker = await startWorker({ tuning: { pollMs: 100 } })
  await asleep(worker)
  const client = await connect()
  await client.query('begin')
  await client.query("select pawl.enqueue('work', wake => false)")
  await client.query("prepare transaction 'pawl j23 sql'")
  await client.query("commit prepared 'pawl j23 sql'")
  await until('it is picked up', () => ran.length === 1)
  await asleep(worker)
  await client.query('begin')
  await client.query("select pawl.enqueue('work')")
  await expect(client.query("prepare transaction 'pawl j23 refused'")).rejects.toThrow(
    /cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY/,
  )
})

test('[J23] without a connection that listens no notification is relied on', async () => {
  const connection = new Connection(db.pawl().config.database, 'test')
  try {
    let isListening = true
    const sleep = new Sleep(connection, { queues: ['default'], canListen: true, isListening: () => isListening, pollMs: 1000 })
    const { id } = await openIncarnation(connection)
    await until('it relies on them', async () => {
      await sleep.idle(id)
      return sleep.isRelied(id)
    })
    isListening = false
    expect(sleep.isRelied(id)).toBe(false)
  } finally {
    await connection.close()
  }
})

test('[J23] after a failover to lower transaction ids, notifications count again', async () => {
  const connection = new Connection(db.pawl().config.database, 'test')
  try {
    const before = {
      run: async (sent: Statement, values: Readonly<Record<string, Parameter>>) =>
        sent.name === 'snapshot' ? [{ snapshot: '9000000:9000002:9000000' }] : connection.run(sent, values),
    }
    const sleep = new Sleep(before as unknown as Connection, { queues: ['default'], canListen: true, pollMs: 1000 })
    const { id } = await openIncarnation(connection)
    for (let n = 0; n < 2; n++) expect(await sleep.idle(id)).toBe(0)
    expect(sleep.isRelied(id)).toBe(true)
  } finally {
    await connection.close()
  }
})

test('[J23] a job added without a wake-up is found beside jobs that end', async () => {
  const worker = await startWorker({ tuning: { pollMs: 300 } })
  await pawl.jobs.enqueue('work', { waits: true })
  await until('one runs', () => ran.length === 1)
  await asleep(worker)
  await until('it relies on notifications', async () => {
    const { claims } = worker.metrics()
    await db.query('select pg_sleep(0.1)')
    return worker.metrics().claims === claims
  })
  await db.query("select pawl.enqueue('work', wake => false)")
  await until('it is picked up', () => {
    // As a job that ends: something changed, and nothing was added.
    void worker.whenIdle()
    return ran.length === 2
  })
})

test('[J23] a closed incarnation leaves no sleeper; the next sets its own', async () => {
  const connection = new Connection(db.pawl().config.database, 'test')
  try {
    const sleepers = async () =>
      (await db.query<{ worker: number }>('select worker from pawl.sleeper')).map(({ worker }) => worker)
    const sleep = new Sleep(connection, { queues: ['default'], canListen: true, pollMs: 1000 })
    const [old, next] = [await openIncarnation(connection), await openIncarnation(connection)]
    await connection.run(leaseStatements.close, { ...asHolder(old), reason: 'lease ended' })
    // It has not heard of that yet.
    await sleep.idle(old.id)
    expect(await sleepers()).toEqual([])
    await sleep.idle(next.id)
    expect(await sleepers()).toEqual([next.id])
    // Closed while it went to sleep: the sleeper's row was not visible yet to the close.
    await db.query("insert into pawl.sleeper (queue, worker) values ('default', $1), ('default', 4711)", [old.id])
    await prune(connection)
    expect(await sleepers()).toEqual([next.id])
  } finally {
    await connection.close()
  }
})
