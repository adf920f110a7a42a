// A relational schema with the same keys: ON UPDATE CASCADE renames what refers to a school while the rename's transaction is open.

import pg from 'pg'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { type Inserts, insertWhile, renamesPer, type Shape } from './loads.ts'

const text = `repeat('x', 250)`
const tables = `
  create table school (school_id bigint primary key, text text not null);
  create table session (school_id bigint not null references school on update cascade, session_name text not null, text text not null,
    primary key (school_id, session_name));
  create table offering (school_id bigint not null, session_name text not null, code text not null, text text not null,
    primary key (school_id, session_name, code), foreign key (school_id, session_name) references session on update cascade)`

export function open(): Peer {
  let pool: pg.Pool
  const keys = new Map<string, number>()
  let lastKey = 1_000_000

  async function plant(name: string, { sessions, offerings }: Shape): Promise<void> {
    const schoolId = ++lastKey
    keys.set(name, schoolId)
    await pool.query(`insert into school values ($1, ${text})`, [schoolId])
    await pool.query(`insert into session select $1, 's' || n, ${text} from generate_series(1, $2::integer) n`, [
      schoolId,
      sessions,
    ])
    await pool.query(
      `insert into offering select $1, 's' || n, 'c' || c, ${text} from generate_series(1, $2::integer) n, generate_series(1, $3::integer) c`,
      [schoolId, sessions, offerings],
    )
  }

  async function rename(name: string): Promise<number> {
    const from = now()
    await pool.query('update school set school_id = $1 where school_id = $2', [++lastKey, keys.get(name)])
    keys.set(name, lastKey)
    return now() - from
  }

  async function inserts(_isControl: boolean, durationMs: number): Promise<Inserts> {
    await pool.query(`insert into school values (1, ${text})`)
    await pool.query(`insert into session values (1, 'p0', ${text})`)
    let current = 'p0'
    let renames = 0
    return insertWhile(durationMs, {
      async insert(n) {
        const values = [current, `i${n}`]
        try {
          await pool.query({ name: 'insert', text: `insert into offering values (1, $1, $2, ${text})`, values })
          return true
        } catch (error) {
          if ((error as { code?: string }).code === '23503') return false
          throw error
        }
      },
      async rename() {
        const to = `p${++renames}`
        const client = await pool.connect()
        try {
          await client.query('begin')
          await client.query('update session set session_name = $1 where school_id = 1 and session_name = $2', [to, current])
          await pause(renamesPer.openMs)
          await client.query('commit')
        } finally {
          client.release()
        }
        current = to
      },
    })
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = { plant, rename, inserts }

  return {
    async prepare({ url, connections }: Setup) {
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(tables)
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    close: () => pool.end(),
  }
}
