// The limit for reads: a table that has nothing but the current rows.

import pg from 'pg'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { jsonOf } from './rows.ts'
import { pageReads, pageRows, scattered, times, wholeReads } from './times.ts'

const table = `create table plain (scope text collate "C", type text collate "C", key text collate "C", data jsonb not null,
  primary key (scope, type, key))`
const insert = `insert into plain select '1', 'load', r.key, r.data from jsonb_to_recordset($1::jsonb) as r(key text, data jsonb)`
const page = 'select type, key, data from plain where scope = $1 and (type, key) > ($2, $3) order by type, key limit $4'
const all = 'select type, key, data from plain where scope = $1 order by type, key'

export function open(): Peer {
  let pool: pg.Pool

  async function fill(file: string): Promise<string[]> {
    const given = [...jsonOf(file)]
    for (let from = 0; from < given.length; from += 1_000) {
      const rows = given.slice(from, from + 1_000).map(({ key, data }) => `{"key":"${key}","data":${data}}`)
      await pool.query(insert, [`[${rows.join(',')}]`])
    }
    await pool.query('vacuum analyze')
    return given.map(({ key }) => key)
  }

  async function read(text: string, values: readonly unknown[], expected: number): Promise<void> {
    const { rows } = await pool.query(text, [...values])
    if (rows.length !== expected) throw new Error(`${rows.length} rows were read instead of ${expected}`)
  }

  return {
    async prepare({ url, connections }: Setup) {
      pool = new pg.Pool({ connectionString: url, max: connections })
      await pool.query(table)
    },
    async run(_task: string, file: string) {
      const keys = await fill(file)
      // A page behind each of these is full.
      const places = keys.filter((_, index) => index % pageRows === pageRows - 1).slice(0, -1)
      const readPage = (after: string) => read(page, ['1', 'load', after, pageRows], pageRows)
      // As Pawl's reader does: every page once before they are timed.
      for (const place of places) await readPage(place)
      const pages = await times(pageReads, (n) => readPage(scattered(places, n)))
      const scope = await times(wholeReads, () => read(all, ['1'], keys.length))
      return { page: pages, scope, asOf: scope }
    },
    close: () => pool.end(),
  }
}
