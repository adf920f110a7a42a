// One row per record with its current data and an array of its versions. A submission reads all records of the
// registration, finds in Node which fields of which rows differ, and appends a version with them. It has neither staging nor preview, readers see
// it half done, and a crash leaves it half done. Rows are parsed before the clock starts.

import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { jsonOf } from './rows.ts'

type Data = Readonly<Record<string, unknown>>

interface Row {
  readonly key: string
  readonly data: Data
}

interface Existing {
  readonly row_id: string
  readonly data: Data
  readonly versions: readonly { readonly summaryLog: string }[]
}

const table = `create table waste_record (organisation text not null, registration text not null, type text not null, row_id text not null,
  data jsonb not null, versions jsonb not null, primary key (organisation, registration, type, row_id))`
const readAll = `select row_id, data, versions from waste_record where organisation = '1' and registration = '1'`
const appendVersions = `insert into waste_record as w (organisation, registration, type, row_id, data, versions)
  select '1', '1', 'load', r.row_id, r.data, jsonb_build_array(r.version)
  from jsonb_to_recordset($1::jsonb) as r(row_id text, data jsonb, version jsonb)
  on conflict (organisation, registration, type, row_id) do update set data = excluded.data, versions = w.versions || excluded.versions`
/** The fastest size of those tried. */
const rowsPerStatement = 1_000

export function open(): Peer {
  let client: pg.Client
  let submissions = 0

  async function submit(rows: readonly Row[]): Promise<number> {
    const summaryLog = String(++submissions)
    const existing = new Map((await client.query<Existing>(readAll)).rows.map((row) => [row.row_id, row]))
    const appended: object[] = []
    for (const { key, data } of rows) {
      const before = existing.get(key)
      if (before?.versions.some((version) => version.summaryLog === summaryLog)) continue
      const changed = before === undefined ? data : changes(before.data, data)
      if (Object.keys(changed).length === 0) continue
      const version = {
        createdAt: new Date().toISOString(),
        status: before === undefined ? 'CREATED' : 'UPDATED',
        summaryLog,
        data: changed,
      }
      appended.push({ row_id: key, data, version })
    }
    for (let from = 0; from < appended.length; from += rowsPerStatement)
      await client.query(appendVersions, [JSON.stringify(appended.slice(from, from + rowsPerStatement))])
    return appended.length
  }

  return {
    async prepare({ url }: Setup) {
      client = new pg.Client({ connectionString: url })
      await client.connect()
      await client.query(table.replace('create table', 'create table if not exists'))
    },
    async run(_task: string, file: string, expected: number) {
      const rows = [...jsonOf(file)].map(({ key, data }) => ({ key, data: JSON.parse(data) as Data }))
      const { rows: counted } = await client.query<{ n: number }>(
        `select coalesce(max(jsonb_array_length(versions)), 0) as n from waste_record`,
      )
      submissions = Math.max(submissions, counted[0]!.n)
      const from = now()
      const changed = await submit(rows)
      const value = now() - from
      if (changed !== expected) throw new Error(`${changed} records were changed instead of ${expected}`)
      return { value }
    },
    close: () => client.end(),
  }
}

function changes(before: Data, after: Data): Data {
  const found: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(after)) if (before[name] !== value) found[name] = value
  for (const name of Object.keys(before)) if (!Object.hasOwn(after, name)) found[name] = null
  return found
}
