// agenda 6 on PostgreSQL. It has no bulk enqueue.

import pg from 'pg'
import { load } from '../harness/system/load.ts'
import { delay, type Peer, payloadOf, type Setup, type Started } from '../harness/system/protocol.ts'

interface Agenda {
  readonly ready: Promise<void>
  define(name: string, run: (job: { attrs: { data: { n: number } } }) => Promise<void>, options: object): void
  now(name: string, data: object): Promise<unknown>
  start(): Promise<void>
  stop(): Promise<unknown>
}

export function open(started: Started): Peer {
  let agenda: Agenda
  let pool: pg.Pool

  return {
    async prepare({ url, connections }: Setup) {
      const { Agenda } = await load<{ Agenda: new (options: object) => Agenda }>('agenda')
      const { PostgresBackend } = await load<{ PostgresBackend: new (options: object) => object }>('@agendajs/postgres-backend')
      pool = new pg.Pool({ connectionString: url, max: connections })
      agenda = new Agenda({ backend: new PostgresBackend({ pool }), defaultConcurrency: 20, maxConcurrency: 20 })
      await agenda.ready
    },
    async fill(count) {
      let next = 0
      const lane = async () => {
        while (next < count) await agenda.now('bench', payloadOf(next++))
      }
      await Promise.all(Array.from({ length: 24 }, lane))
    },
    async work({ handler, concurrency }) {
      agenda.define(
        'bench',
        async ({ attrs }) => {
          started(attrs.data.n)
          await delay(handler)
        },
        { concurrency },
      )
      await agenda.start()
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>(
        'select exists (select from agenda_jobs where last_finished_at is null) as some',
      )
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n) {
      await agenda.now('bench', payloadOf(n))
      return undefined
    },
    async close() {
      await agenda.stop()
      await pool.end()
    },
  }
}
