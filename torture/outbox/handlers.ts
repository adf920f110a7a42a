// Who gets the events in a storm of outbox: a function that is called at least once and writes down each call, and a handler whose effect is a
// row in the same database.

import { setTimeout as sleep } from 'node:timers/promises'
import type { LogEvent, Pawl } from 'pawl'
import type { EventData } from '../events/transactions.ts'
import type { History } from '../history.ts'

const shards = 3
/** A stopped process must not keep its cursor's row for long: the server ends its transaction after so much and a second. */
const timeoutMs = 1500
/** Nothing of this is an event's own fault, so none is ever given up. */
const patient = { attempts: 100_000, crashes: 1000, initialMs: 10, factor: 2, maxMs: 100 } as const

export const sinkName = 'calls'
export const effectsName = 'effects'

export function defineHandlers(pawl: Pawl, history: History): void {
  let calls = 0
  pawl.projections.sink(sinkName, {
    shards,
    concurrency: 8,
    timeout: timeoutMs,
    retry: patient,
    handle: async (event, { attempt, idempotencyKey }) => {
      const { position, id, key } = event as LogEvent<EventData>
      const call = { call: ++calls, position, id, key, attempt, idempotencyKey }
      history.write('call', { ph: 'invoke', ...call })
      const ms = (position * 7) % 13
      if (ms > 4) await sleep(ms)
      if (attempt === 1 && position % 41 === 7) {
        history.write('call', { ph: 'fail', ...call })
        throw new Error('planned failure')
      }
      history.write('call', { ph: 'ok', ...call })
    },
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
