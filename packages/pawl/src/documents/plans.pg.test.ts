// Every statement of documents, explained as a generic plan on tables with rows that were never analyzed: its plan must not need statistics.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { plant } from '../../test/support/documents.ts'
import { sourcesIn, statement } from '../db/statement.ts'

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Shared Hit Blocks'?: number
  readonly 'Shared Read Blocks'?: number
  readonly Plans?: readonly PlanNode[]
}

const files = [...sourcesIn(new URL('./sql/', import.meta.url))].map(([name, source]) => ({
  name,
  source,
  text: statement(import.meta.url, name).text,
}))

let db: TestDatabase
let indexNames: Set<string>
let ids: { readonly schoolId: string; readonly sessionId: string }
beforeAll(async () => {
  db = await createDatabase()
  for (const table of ['document', 'document_key', 'document_ref'])
    await db.query(`alter table pawl.${table} set (autovacuum_enabled = false)`)
  const schoolId = await plant(db, 'School', { schoolId: 1 })
  const sessionId = await plant(db, 'Session', { sessionName: 'A', schoolReference: { schoolId: 1 } })
  ids = { schoolId, sessionId }
  await db.query(
    `insert into pawl.document (id, type, receipt, content, keys, body)
       select n, 'Session', 1, '', '{"Session": {"sessionName": "A", "schoolId": 1}}', '{"schoolReference": {"schoolId": 1}}' from generate_series(1000, 21000) n`,
  )
  await db.query(
    `insert into pawl.document_key (hash, document_id, type, parts, refs) select int8send(n), n, 'Session', '{}', array[${schoolId}] from generate_series(1000, 21000) n`,
  )
  await db.query(
    `insert into pawl.document_ref (from_id, path, to_id, type, in_key) select n, '{schoolReference}', ${schoolId}, 'School', true from generate_series(1000, 21000) n`,
  )
  const rows = await db.query<{ name: string }>("select indexname as name from pg_indexes where schemaname = 'pawl'")
  indexNames = new Set(rows.map(({ name }) => name))
})
afterAll(() => db.drop())

function* nodesOf(node: PlanNode): Generator<PlanNode> {
  yield node
  for (const child of node.Plans ?? []) yield* nodesOf(child)
}

test.each(files)('$name has its header and its plan without statistics', async ({ source, text }) => {
  const header = source.slice(0, source.search(/^(?!--)/m))
  expect(header).toMatch(
    /^-- [A-Z][^\n]+\n(-- [^\n]+\n)*-- Locks: [^\n]+\n(-- [^\n]+\n)*-- Plan: [^\n]+\n(-- [^\n]+\n)*-- (No row|One row|Rows?\b)/,
  )
  expect(source.slice(header.length).match(/(?<![:\w]):[a-z_]+\b(?!::)/g) ?? []).toEqual([])
  const [row] = await db.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(`explain (generic_plan, format json) ${text}`)
  const nodes = [...nodesOf(row!['QUERY PLAN'][0]!.Plan)]
  const promised = [...new Set(/^-- Plan: ([^.]*)\./m.exec(source)![1]!.match(/\b[a-z_]+\b/g))].filter((word) =>
    indexNames.has(word),
  )
  expect(nodes.flatMap((node) => node['Index Name'] ?? [])).toEqual(expect.arrayContaining(promised))
  const scanned = nodes.filter((node) => node['Node Type'] === 'Seq Scan').map((node) => node['Relation Name'] ?? '')
  expect(scanned.filter((name) => name.startsWith('document'))).toEqual([])
})

test('reads and walks read few pages of large tables without statistics', async () => {
  const client = await db.pool.connect()
  const pages = async (text: string): Promise<number> => {
    // The first call plans, and reads the catalogue for it.
    await client.query(text)
    const { rows } = await client.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(`explain (analyze, buffers, format json) ${text}`)
    const { Plan } = rows[0]!['QUERY PLAN'][0]!
    return Plan['Shared Hit Blocks']! + Plan['Shared Read Blocks']!
  }
  const { schoolId, sessionId } = ids
  const read = (id: string) => pages(`select r.id from pawl.read_documents('', array[${id}]::bigint[]) r`)
  const counts = [await read(sessionId), await read('15000')]
  const walked = await pages(`select w.walked from pawl.walk_documents('', array[${schoolId}]::bigint[], '{0}', 10) w`)
  client.release()
  expect(Math.max(...counts)).toBeLessThan(60)
  expect(walked).toBeLessThan(300)
})

test('a get by key looks for its documents once', async () => {
  const client = await db.pool.connect()
  await client.query("begin; set local track_functions = 'all'")
  await client.query(statement(import.meta.url, 'get-by-key').text, ['', `{"\\\\x00"}`, '{}', '{0}'])
  const { rows } = await client.query(
    "select pg_stat_get_xact_function_calls(oid)::integer as calls from pg_proc where proname = 'find_documents'",
  )
  await client.query('rollback')
  client.release()
  expect(rows).toEqual([{ calls: 1 }])
})
