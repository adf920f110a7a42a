// Who gets the events in a storm of outbox: a function that is called at least once and writes down each call, and a handler whose effect is a
// row in the same database.

import type { Pawl } from 'pawl'
import { childOptions } from '../child.ts'
import { assertMended } from '../events/mend.ts'
import { recorded } from '../events/sink.ts'
import type { EventData } from '../events/transactions.ts'
import type { History } from '../history.ts'
import { hardyPool } from '../pool.ts'

const shards = 3
/** A stopped process must not keep its cursor's row for long: the server ends its transaction after so much and a second. */
const timeoutMs = 1500
/** None is given up but what is bad, until somebody has mended it. */
const patient = { attempts: 100_000, crashes: 1000, initialMs: 10, factor: 2, maxMs: 100 } as const

export const sinkName = 'calls'
export const effectsName = 'effects'

export function defineHandlers(pawl: Pawl, history: History): void {
  const pool = hardyPool({ url: childOptions().url, name: `${history.proc} own`, max: 2 })
  pawl.projections.sink(sinkName, {
    shards,
    concurrency: 8,
    timeout: timeoutMs,
    retry: patient,
    handle: recorded(history, async (event) => {
      if (event.data.bad) await assertMended(event, pool)
    }),
  })
  pawl.projections.define(effectsName, {
    shards,
    batchMax: 100,
    timeout: timeoutMs,
    retry: patient,
    each: (event, tx, { generation }) => {
      tx.send(
        `insert into torture.applied (name, generation, position, event_id, key, n, proc)
         values ($1::text, $2::integer, $3::bigint, $4::uuid, $5::text, $6::bigint, $7::text)`,
        [effectsName, generation, event.position, event.id, event.key, (event.data as EventData).n ?? null, history.proc],
      )
    },
  })
}
