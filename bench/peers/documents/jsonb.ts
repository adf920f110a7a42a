// Bodies in JSONB, and a table of references by id: a rename rewrites all bodies in one statement per level, in one transaction.

import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import type { Shape } from './loads.ts'

const text = `repeat('x', 250)`
const tables = `
  create sequence id;
  create table document (id bigint primary key, type text not null, body jsonb not null);
  create table reference (from_id bigint not null references document, to_id bigint not null references document, primary key (from_id, to_id));
  create index on reference (to_id, from_id)`
const insertSchool = `insert into document select nextval('id'), 'School', jsonb_build_object('schoolId', $1::bigint, 'text', ${text}) returning id`
const insertSessions = `
  with made as (
    insert into document
    select nextval('id'), 'Session', jsonb_build_object('sessionName', 's' || n, 'school', jsonb_build_object('schoolId', $1::bigint), 'text', ${text})
    from generate_series(1, $3::integer) n
    returning id
  )
  insert into reference select id, $2::bigint from made`
const insertOfferings = `
  with made as (
    insert into document
    select nextval('id'), 'Offering', jsonb_build_object('code', 'c' || c, 'session', d.body - 'school' - 'text' || (d.body -> 'school'), 'text', ${text}, 'of', d.id)
    from reference r join document d on d.id = r.from_id cross join generate_series(1, $2::integer) c
    where r.to_id = $1::bigint
    returning id, body
  )
  insert into reference select id, (body ->> 'of')::bigint from made`
const patch = (path: string) => `jsonb_set(d.body, '{${path},schoolId}', to_jsonb($2::bigint))`
const renameSchool = `update document d set body = jsonb_set(d.body, '{schoolId}', to_jsonb($2::bigint)) where d.id = $1::bigint`
const rewriteSessions = `update document d set body = ${patch('school')} from reference r where r.to_id = $1::bigint and d.id = r.from_id`
const rewriteOfferings = `update document d set body = ${patch('session')}
  from reference r join reference s on s.to_id = r.from_id where r.to_id = $1::bigint and d.id = s.from_id`

export function open(): Peer {
  let pool: pg.Pool
  const ids = new Map<string, string>()
  let lastKey = 1_000_000

  async function plant(name: string, { sessions, offerings }: Shape): Promise<void> {
    const schoolId = ++lastKey
    const { rows } = await pool.query<{ id: string }>(insertSchool, [schoolId])
    const { id } = rows[0]!
    ids.set(name, id)
    await pool.query(insertSessions, [schoolId, id, sessions])
    await pool.query(insertOfferings, [id, offerings])
  }

  async function rename(name: string): Promise<number> {
    const values = [ids.get(name)!, ++lastKey]
    const client = await pool.connect()
    const from = now()
    try {
      await client.query('begin')
      for (const text of [renameSchool, rewriteSessions, rewriteOfferings]) await client.query(text, values)
      await client.query('commit')
    } finally {
      client.release()
    }
    return now() - from
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = { plant, rename }

  return {
    async prepare({ url, connections }: Setup) {
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(tables)
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    close: () => pool.end(),
  }
}
