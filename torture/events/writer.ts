// Appends as users do, and writes down what it asked for and what it was answered. What committed is told by torture.wrote, which is written in
// the same transaction.

import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl, isPawlError, type Logger, type Pawl, silentLogger } from 'pawl'
import type pg from 'pg'
import type { History } from '../history.ts'
import { hardyPool } from '../pool.ts'
import type { EventData, Transaction } from './transactions.ts'

type Answer = 'ok' | 'fail' | 'info'

export interface Written {
  readonly ph: Answer
  /** Of the last append that gave one, if it is certain to be there. */
  readonly token?: string
  /** The number of the last event of each key. */
  readonly last: ReadonlyMap<string, number>
}

export class Writer {
  readonly pawl: Pawl
  readonly #history: History
  readonly #pool: pg.Pool

  constructor(options: { url: string; name: string; history: History; logger?: Logger }) {
    const { url, name, history, logger = silentLogger } = options
    this.#history = history
    this.pawl = createPawl({ databaseUrl: url, applicationName: name, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
    this.#pool = hardyPool({ url, name: `${name} own`, max: 6 })
  }

  async close(): Promise<void> {
    await this.pawl.close()
    await this.#pool.end()
  }

  write(transaction: Transaction): Promise<Written> {
    return transaction.way === 'plain' ? this.#writePlain(transaction) : this.#writeOwn(transaction)
  }

  /** How far the last cursor is behind, and what waits behind parked keys. */
  async backlog(): Promise<number> {
    const { rows } = await this.#pool.query<{ n: string }>(
      `select coalesce(max(s.position - c.position), 0) + (select count(*) from pawl.parked_event) as n
       from pawl.sequencer s, pawl.cursor_at c where c.kind = 'log'`,
    )
    return Number(rows[0]!.n)
  }

  /** A transaction in steps, for a story that lets other things happen between them. */
  async open(transaction: Transaction): Promise<{ fill: () => Promise<void>; end: () => Promise<Written> }> {
    const answer = this.#begin(transaction)
    const client = await this.#pool.connect()
    const last = new Map<string, number>()
    let token: string | undefined
    await client.query('begin')
    if (transaction.isEarly) await client.query('select pg_current_xact_id()')
    return {
      fill: async () => {
        token = await this.#fill(client, transaction, last)
      },
      end: async () => {
        await client.query(transaction.ending)
        client.release()
        return answer(transaction.ending === 'commit' ? 'ok' : 'fail', { token, last })
      },
    }
  }

  async #writeOwn(transaction: Transaction): Promise<Written> {
    const answer = this.#begin(transaction)
    const last = new Map<string, number>()
    let client: pg.PoolClient | undefined
    let isEnding = false
    try {
      client = await this.#pool.connect()
      await client.query('begin')
      if (transaction.isEarly) await client.query('select pg_current_xact_id()')
      const token = await this.#fill(client, transaction, last)
      if (transaction.openMs > 0) await sleep(transaction.openMs)
      isEnding = transaction.ending !== 'rollback'
      if (transaction.ending === 'prepare') {
        await client.query(`prepare transaction '${transaction.batch}'`)
        await sleep(transaction.openMs)
        await client.query(`commit prepared '${transaction.batch}'`)
      } else await client.query(transaction.ending)
      client.release()
      return answer(isEnding ? 'ok' : 'fail', { token, last })
    } catch (error) {
      client?.release(true)
      return answer(isEnding ? 'info' : 'fail', { last, error: String(error) })
    }
  }

  async #fill(client: pg.PoolClient, transaction: Transaction, last: Map<string, number>): Promise<string | undefined> {
    const { batch, writes } = transaction
    let token: string | undefined
    let i = 0
    for (const { key, count } of writes) {
      const { rows } = await client.query<{ n: string }>(
        'update torture.counter set n = n + $2::bigint where key = $1 returning n',
        [key, count],
      )
      const to = Number(rows[0]!.n)
      const events = Array.from({ length: count }, (_, index) => dataOf(transaction, i + index, to - count + 1 + index))
      await client.query(
        `insert into torture.wrote (batch, i, key, n)
         select $1, (d ->> 'i')::integer, $2, (d ->> 'n')::bigint from jsonb_array_elements($3::jsonb) d`,
        [batch, key, JSON.stringify(events)],
      )
      token = (await this.#append(client, transaction, key, events)) ?? token
      last.set(key, to)
      i += count
    }
    if (transaction.ghosts > 0) await this.#appendGhosts(client, transaction)
    return token
  }

  /** In a savepoint that is rolled back: they must never be seen. */
  async #appendGhosts(client: pg.PoolClient, { batch, writes, ghosts }: Transaction): Promise<void> {
    await client.query('savepoint ghosts')
    const data = Array.from({ length: ghosts }, (_, i) => ({ b: batch, i: -1 - i, amount: 0, ghost: true }))
    await this.pawl.events.append(
      data.map((each) => ({ type: 'Written', aggregateType: 'thing', key: writes[0]!.key, data: each })),
      { tx: client, wake: false },
    )
    await client.query('rollback to savepoint ghosts')
  }

  async #append(
    client: pg.PoolClient,
    { way, batch, ending }: Transaction,
    key: string,
    events: readonly EventData[],
  ): Promise<string | undefined> {
    const wake = ending !== 'prepare'
    const json = JSON.stringify(events)
    // An insert notifies, and a trigger's append does, which a transaction that is to be prepared cannot.
    switch (!wake && ['insert', 'trigger'].includes(way) ? 'sql' : way) {
      case 'sql':
        await client.query(
          `select pawl.append('Written', 'thing', $1, d.value, wake => $3::boolean)
           from jsonb_array_elements($2::jsonb) with ordinality d(value, n) order by d.n`,
          [key, json, wake],
        )
        return undefined
      case 'insert':
        await client.query(
          `insert into pawl.event (aggregatetype, aggregateid, type, payload)
           select 'thing', $1, 'Written', d.value from jsonb_array_elements($2::jsonb) with ordinality d(value, n) order by d.n`,
          [key, json],
        )
        return undefined
      case 'trigger':
        await client.query(
          `insert into torture.thing (batch, i, key, n, data)
           select $1, (d.value ->> 'i')::integer, $2, (d.value ->> 'n')::bigint, d.value
           from jsonb_array_elements($3::jsonb) with ordinality d(value, n) order by d.n`,
          [batch, key, json],
        )
        return undefined
      default: {
        const news = events.map((data) => ({ type: 'Written', aggregateType: 'thing', key, data }))
        return (await this.pawl.events.append(news, { tx: client, wake })).token
      }
    }
  }

  /** Without a transaction. A lost answer leaves it open whether the events are there, and Pawl says so. */
  async #writePlain(transaction: Transaction): Promise<Written> {
    const answer = this.#begin(transaction)
    const count = transaction.writes[0]!.count
    try {
      const { token } = await this.pawl.events.append(
        Array.from({ length: count }, (_, i) => ({
          type: 'Written',
          aggregateType: 'thing',
          key: 'plain',
          data: { b: transaction.batch, i, amount: 1 } satisfies EventData,
        })),
      )
      return answer('ok', { token, last: new Map() })
    } catch (error) {
      return answer(isPawlError(error, 'PAWL_COMMIT_UNKNOWN') ? 'info' : 'fail', { last: new Map(), error: String(error) })
    }
  }

  #begin({ batch, way, writes, ending }: Transaction) {
    const count = way === 'plain' ? writes[0]!.count : writes.reduce((sum, each) => sum + each.count, 0)
    const asked = { batch, way, ending, count }
    this.#history.write('append', { ph: 'invoke', ...asked })
    return (ph: Answer, more: { token?: string | undefined; last: Map<string, number>; error?: string }): Written => {
      this.#history.write('append', { ph, ...asked, error: more.error })
      return { ph, last: more.last, ...(more.token === undefined ? {} : { token: more.token }) }
    }
  }
}

function dataOf({ batch, isBad }: Transaction, i: number, n: number): EventData {
  return {
    b: batch,
    i,
    n,
    amount: (n * 7919) % 101,
    ...(isBad && i === 0 ? { bad: true } : {}),
    ...(n % 10 === 4 ? { echo: true } : {}),
  }
}
