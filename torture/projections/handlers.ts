// The projections of a storm: one of each kind, over several tables, with shards and without, and a sink; all of them meet events that they
// refuse until somebody has mended the cause.

import { setTimeout as sleep } from 'node:timers/promises'
import type { LogEvent, LogProjectionOptions, Pawl, ProjectionTx, SinkOptions } from 'pawl'
import { childOptions } from '../child.ts'
import { assertMended } from '../events/mend.ts'
import { recorded } from '../events/sink.ts'
import type { EventData } from '../events/transactions.ts'
import type { History } from '../history.ts'
import { hardyPool } from '../pool.ts'

/** A log projection of one shard and two tables, which is rebuilt and switched. */
export const foldedName = 'folded'
/** A log projection of three shards that gets its events in batches. */
export const shardedName = 'sharded'
/** A state projection. */
export const copiedName = 'copied'
export const handedName = 'handed'

/** Every process defines them all; which of them are there, the operator decides. */
export const generationsMax = 8

const shards = 3
const timeoutMs = 1500
const patient = { attempts: 100_000, crashes: 3, initialMs: 10, factor: 2, maxMs: 100 } as const
const appliedSql = `insert into torture.applied (name, generation, position, event_id, key, n, proc)
  values ($1::text, $2::integer, $3::bigint, $4::uuid, $5::text, $6::bigint, $7::text)`

export const tables = [
  { name: 'torture.balance', key: ['key'], columns: ['key', 'events', 'total'] },
  { name: 'torture.journal', key: ['position'], columns: ['position', 'key'] },
] as const

export function defineProjections(pawl: Pawl, history: History): void {
  for (let generation = 1; generation <= generationsMax; generation++)
    pawl.projections.define(foldedName, folded(pawl, generation, history.proc))
  pawl.projections.define(shardedName, {
    shards,
    batchMax: 60,
    timeout: timeoutMs,
    retry: patient,
    batch: async (events, tx, { generation }) => {
      for (const event of events as LogEvent<EventData>[]) {
        if (event.data.bad) await assertMended(event, tx)
        apply(tx, shardedName, generation, event, history.proc)
      }
    },
  })
  defineCopied(pawl)
  pawl.projections.sink(handedName, handed(history))
}

/** Without a process it only declares the tables: for whoever rebuilds and switches. */
export function folded(pawl: Pawl | undefined, generation: number, proc = ''): LogProjectionOptions {
  return {
    generation,
    tables,
    batchMax: 60,
    timeout: timeoutMs,
    retry: patient,
    each: async (given, tx, { table }) => {
      const event = given as LogEvent<EventData>
      const { key, position, data } = event
      if (data.bad) await assertMended(event, tx)
      apply(tx, foldedName, generation, event, proc)
      tx.send(
        `insert into ${table('torture.balance')} as b (key, events, total) values ($1::text, 1, $2::bigint)
         on conflict (key) do update set events = b.events + 1, total = b.total + excluded.total`,
        [key, data.amount ?? 0],
      )
      tx.send(`insert into ${table('torture.journal')} (position, key) values ($1::bigint, $2::text)`, [position, key])
      if (data.echo)
        await pawl!.events.append(
          { type: 'Echoed', aggregateType: 'thing', key: 'echo', data: { of: position, amount: 0 } },
          { tx },
        )
    },
  }
}

function apply(tx: ProjectionTx, name: string, generation: number, event: LogEvent<EventData>, proc: string): void {
  tx.send(appliedSql, [name, generation, event.position, event.id, event.key, event.data.n ?? null, proc])
}

function defineCopied(pawl: Pawl): void {
  const tried = new Set<string>()
  pawl.projections.define(copiedName, {
    kind: 'state',
    concurrency: 3,
    timeout: timeoutMs,
    retry: patient,
    entity: ({ key }) => (/\d$/.test(key) ? key : undefined),
    refresh: async (key, tx) => {
      const { rows } = await tx.query<{ n: string }>('select n from torture.counter where key = $1::text', [key])
      const n = Number(rows[0]!.n)
      if (n % 29 === 3 && !tried.has(`${key} ${n}`)) {
        tried.add(`${key} ${n}`)
        throw new Error('planned failure')
      }
      if (n % 7 === 0) await sleep(10)
      tx.send('insert into torture.refreshed (key, n) values ($1::text, $2::bigint)', [key, n])
      tx.send(
        'insert into torture.copied (key, n) values ($1::text, $2::bigint) on conflict (key) do update set n = excluded.n',
        [key, n],
      )
    },
  })
}

function handed(history: History): SinkOptions {
  const { url } = childOptions()
  const pool = hardyPool({ url, name: `${history.proc} own`, max: 2 })
  return {
    shards,
    concurrency: 6,
    timeout: timeoutMs,
    retry: patient,
    handle: recorded(history, async (event) => {
      if (event.data.bad) await assertMended(event, pool)
    }),
  }
}
