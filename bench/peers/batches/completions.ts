// The statements with which workers complete items, alone: 32 connections, and items whose jobs are claimed before. `tx` is the transaction of a
// handler that writes one row; `settle` the flush of a settler. Both are the code of workers.

import { createPawl, type Pawl } from 'pawl'
import pg from 'pg'
import { Finisher, type ItemPayload } from '../../../packages/pawl/src/batches/finish.ts'
import { Connection, createPool, type DatabaseOptions } from '../../../packages/pawl/src/db/driver.ts'
import { numbersLiteral } from '../../../packages/pawl/src/db/statement.ts'
import { Transaction } from '../../../packages/pawl/src/db/transaction.ts'
import { now } from '../../harness/machine/clock.ts'
import { effectTable, insertEffect, type Peer, type Setup } from '../../harness/system/protocol.ts'
import { itemsOf } from './pawl.ts'

interface Claimed {
  readonly tenant: string
  readonly id: string
  readonly fence: string
  readonly payload: ItemPayload
}

/** As a worker would: fed, and claimed by one holder. */
const claimed = `update pawl.job set state = 'running', holder = 1, attempt = 1, fence = pawl.next_fence(), claimed_at = pawl.now(),
  run_until = pawl.now() + interval '1 hour' where kind = 'pawl.batch.bench.item'`

export function open(): Peer {
  let pawl: Pawl
  let admin: pg.Client
  let database: DatabaseOptions
  const { done, complete, values } = new Finisher().settleWith(() => {
    throw new Error('nothing settles here')
  })

  async function claim(count: number): Promise<Claimed[]> {
    const kind = pawl.batches.define('bench', { allowance: { minMs: 3_600_000 }, item: { run: () => undefined } })
    const { id } = await pawl.batches.start(kind, itemsOf(count))
    await admin.query(`${effectTable}; update pawl.batch set boundary_at = pawl.now()`)
    for (let fed = 0; fed < count; ) {
      await admin.query('select pawl.feed_batch(tenant, id, fence) from pawl.batch')
      const { rows } = await admin.query<{ fed: number }>('select fed from pawl.batch where id = $1', [id])
      fed = rows[0]!.fed
    }
    await admin.query(claimed)
    await admin.query('vacuum analyze')
    const { rows } = await admin.query<Claimed>(
      "select tenant, id::text, fence::text, payload from pawl.job where state = 'running' order by id",
    )
    return rows
  }

  /** Each connection takes the next items until none is left. */
  async function drain(
    items: readonly Claimed[],
    each: number,
    workers: readonly ((flush: readonly Claimed[]) => Promise<unknown>)[],
  ) {
    let next = 0
    const from = now()
    await Promise.all(
      workers.map(async (work) => {
        while (next < items.length) {
          const flush = items.slice(next, next + each)
          next += each
          await work(flush)
        }
      }),
    )
    const to = now()
    const { rows } = await admin.query<{ done: number }>(
      "select count(*)::integer as done from pawl.batch_item where outcome = 'done'",
    )
    if (rows[0]!.done !== items.length) throw new Error(`${rows[0]!.done} of ${items.length} items are done`)
    return { from, to }
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
    async tx(count: number, connections: number) {
      const items = await claim(count)
      const pool = createPool(database, 'handler', connections)
      const clients = await Promise.all(Array.from({ length: connections }, () => pool.connect()))
      const workers = clients.map((client) => async ([item]: readonly Claimed[]) => {
        const { tenant, id, fence, payload } = item!
        const options = { names: pool.names, path: 'users', reset: 'select pawl.reset_session(true)' } as const
        const tx = new Transaction(client, options)
        await tx.query(insertEffect, [payload.n])
        await tx.commitWith(complete, { tenant, id, fence, result: null, ran_ms: 1, progress: null, ...values([item!]) })
      })
      const answer = await drain(items, 1, workers)
      for (const client of clients) client.release()
      await pool.end()
      return answer
    },
    async settle(count: number, connections: number, each: number) {
      const items = await claim(count)
      const settlers = Array.from({ length: connections }, () => new Connection(database, 'settle', { durability: 'durable' }))
      for (const settler of settlers) await settler.query('select 1')
      const workers = settlers.map((settler) => (flush: readonly Claimed[]) => {
        const keys = { ids: numbersLiteral(flush.map(({ id }) => id)), fences: numbersLiteral(flush.map(({ fence }) => fence)) }
        const ran_ms = numbersLiteral(flush.map(() => 1))
        return settler.run(done, { ...keys, tenants: '{}', results: '{}', progress: '{}', ran_ms, ...values(flush) })
      })
      const answer = await drain(items, each, workers)
      for (const settler of settlers) await settler.close()
      return answer
    },
  }

  return {
    async prepare({ url }: Setup) {
      database = { url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 60_000, applicationName: 'bench' }
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      admin = new pg.Client({ connectionString: url })
      await admin.connect()
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    async close() {
      await pawl.close()
      await admin.end()
    },
  }
}
