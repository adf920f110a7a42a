// Pawl with its default settings: appends, and a projection or, as the variant 'sink', a sink.

import { createPawl, type LogEvent, type Pawl } from 'pawl'
import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import {
  effectTable,
  type Handler,
  insertEffect,
  type Peer,
  type Setup,
  type Started,
  type Via,
} from '../../harness/system/protocol.ts'
import { type Stoppable, startWorker } from '../worker.ts'
import { countTable, eventOf, upsertCount } from './event.ts'

const numberOf = (event: LogEvent) => (event.data as { readonly n: number }).n

export function open(started: Started, variant: string | undefined): Peer {
  let pawl: Pawl
  let pool: pg.Pool
  let worker: Stoppable | undefined
  let appended = 0

  function define(handler: Handler): void {
    if (variant === 'sink') {
      pawl.projections.sink('bench', { handle: (event) => started(numberOf(event)) })
    } else if (handler === 'upsert') {
      pawl.projections.define('bench', {
        each: (event, tx) => {
          started(numberOf(event))
          tx.send(upsertCount, [event.key])
        },
      })
    } else {
      pawl.projections.define('bench', { each: (event) => started(numberOf(event)) })
    }
  }

  async function appendInCalls(count: number, callSize: number): Promise<void> {
    for (let from = 0; from < count; from += callSize) {
      await pawl.events.append(Array.from({ length: Math.min(callSize, count - from) }, (_, index) => eventOf(from + index)))
    }
    appended += count
  }

  return {
    async prepare({ url, connections }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(effectTable)
      await pool.query(countTable)
    },
    fill: (count) => appendInCalls(count, 1_000),
    bulk: appendInCalls,
    async work({ handler }) {
      define(handler)
      worker = await startWorker(pawl, 'cursors')
    },
    async remaining() {
      const [cursor] = await pawl.projections.status('bench')
      return appended - (cursor?.position ?? 0)
    },
    /** In a transaction that also writes a row. Gives the moment when its commit is sent. */
    async enqueue(n: number, _via: Via) {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await client.query(insertEffect, [n])
        await pawl.events.append(eventOf(n), { tx: client })
        const at = now()
        await client.query('commit')
        return at
      } finally {
        client.release()
      }
    },
    async close() {
      await worker?.stop()
      await pawl.close()
      await pool.end()
    },
  }
}
