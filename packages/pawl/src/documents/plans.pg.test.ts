// Every statement of documents, explained as a generic plan on tables with rows that were never analyzed: its plan must not need statistics.

import type pg from 'pg'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { defineSchools, plant } from '../../test/support/documents.ts'
import { sourcesIn, statement } from '../db/statement.ts'

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly 'Join Filter'?: string
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

/** What a session runs, each statement inside of functions too, with its plan. */
async function plansOf(client: pg.PoolClient, work: () => Promise<unknown>): Promise<{ text: string; nodes: PlanNode[] }[]> {
  const plans: { text: string; nodes: PlanNode[] }[] = []
  client.on('notice', ({ message }) => {
    const plan = /plan:\n(\{.*)/s.exec(message ?? '')?.[1]
    if (plan === undefined) return
    const { 'Query Text': text, Plan } = JSON.parse(plan) as { 'Query Text': string; Plan: PlanNode }
    plans.push({ text, nodes: [...nodesOf(Plan)] })
  })
  await client.query("load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on")
  await client.query('set auto_explain.log_format = json; set client_min_messages = log')
  await work()
  client.release(true)
  return plans
}

test('no call scans a tenant or a type without statistics', async () => {
  const own = await createDatabase()
  onTestFinished(() => own.drop())
  const { documents } = own.pawl()
  defineSchools(documents)
  // Definitions are stored before the first write, on a connection of their own.
  await expect(documents.post('School', {})).rejects.toMatchObject({ code: 'PAWL_DOCUMENT_INVALID' })
  for (const table of ['document', 'document_key', 'document_ref'])
    await own.query(`alter table pawl.${table} set (autovacuum_enabled = false)`)
  await own.query(
    `with new as (insert into pawl.document (id, type, receipt, content, keys, body)
       select nextval('pawl.document_id'), 'Session', 1, '', '{}', '{}' from generate_series(1, 20000) n returning id),
     key as (insert into pawl.document_key (hash, document_id, type, parts) select int8send(id), id, 'Session', '{}' from new)
     insert into pawl.document_ref (from_id, path, to_id, type, in_key) select id, '{beside}', id, 'Session', false from new`,
  )
  const tx = await own.pool.connect()
  const session = (sessionName: string, schoolId = 1) => ({ sessionName, schoolReference: { schoolId } })
  const plans = await plansOf(tx, async () => {
    await tx.query('begin')
    const { uuid } = await documents.post('School', { schoolId: 1 }, { tx })
    for (const schoolId of [2, 3]) await documents.post('School', { schoolId }, { tx })
    const many = await documents.postMany(
      'Session',
      ['A', 'B', 'A'].map((name) => session(name)),
      { tx },
    )
    const [a, b] = many.map((each) => each.ok && each.uuid) as [string, string]
    await documents.post('Offering', { code: 'c', sessionReference: { sessionName: 'A', schoolId: 1 } }, { tx })
    await documents.post('Session', { ...session('A'), n: 1 }, { tx })
    await documents.put('Session', a, session('C'), { tx })
    await documents.putAll(
      [
        { type: 'Session', uuid: a, body: session('B') },
        { type: 'Session', uuid: b, body: session('C') },
      ],
      { tx },
    )
    await documents.put('School', uuid, { schoolId: 4 }, { tx })
    const taken = { code: 'PAWL_KEY_TAKEN' }
    await expect(documents.put('School', uuid, { schoolId: 2 }, { tx })).rejects.toMatchObject(taken)
    await expect(documents.delete('School', uuid, { tx })).rejects.toMatchObject({ code: 'PAWL_REFERENCED' })
    await documents.delete('Session', b, { tx })
    await documents.get('Session', a, { tx })
    await documents.get('Session', { sessionName: 'B', schoolId: 4 }, { tx })
    await documents.list('Session', { limit: 5, where: { sessionName: 'B' }, tx })
    await documents.list('Session', { where: { schoolReference: { schoolId: 4 } }, tx })
    await documents.referrers('School', uuid, { tx })
    await documents.referrers('School', uuid, { after: '1.schoolReference', tx })
    const { rows } = await tx.query<{ id: string }>("select id from pawl.document where tenant = '' and uuid = $1", [uuid])
    await tx.query("select pawl.refresh_documents('', $1)", [[rows[0]!.id]])
    await tx.query("select pawl.walk_documents('', $1, '{0}', 4000)", [[rows[0]!.id]])
    await tx.query('rollback')
  })
  expect(plans.length).toBeGreaterThan(100)
  const wrong = plans.flatMap(({ text, nodes }) =>
    nodes
      .filter((node) =>
        /^document_(?!type)/.test(node['Index Name'] ?? (node['Node Type'] === 'Seq Scan' ? `${node['Relation Name']}_` : '')),
      )
      .filter((node) => !/\b(id|uuid|hash|document_id|from_id|to_id)\b/.test(node['Index Cond'] ?? ''))
      .map((node) => `${node['Node Type']} ${node['Index Name']} ${node['Index Cond']}: ${text.slice(0, 300)}`),
  )
  expect(new Set(wrong)).toEqual(new Set())
})

test('a page of referrers reads no other documents, with statistics too', async () => {
  const own = await createDatabase()
  onTestFinished(() => own.drop())
  const { documents } = own.pawl()
  defineSchools(documents)
  const { uuid } = await documents.post('School', { schoolId: 1 })
  await own.query(
    `with new as (insert into pawl.document (id, type, receipt, content, keys, body)
       select nextval('pawl.document_id'), 'Session', 1, '', '{}', '{}' from generate_series(1, 20000) n returning id)
     insert into pawl.document_ref (from_id, path, to_id, type, in_key) select n.id, '{schoolReference}', d.id, 'School', false
       from new n, pawl.document d where d.uuid = $1`,
    [uuid],
  )
  await own.query('analyze pawl.document, pawl.document_ref')
  const tx = await own.pool.connect()
  await tx.query('begin')
  const plans = await plansOf(tx, () => documents.referrers('School', uuid, { tx }))
  const read = plans.flatMap(({ nodes }) => nodes).filter((node) => node['Index Name'] === 'document_pkey')
  expect(read.map((node) => node['Index Cond'])).toEqual([expect.stringMatching(/\bid = /)])
})

test('a walk compares no document that it wrote with all others', async () => {
  const client = await db.pool.connect()
  await client.query('begin')
  const plans = await plansOf(client, () =>
    client.query("select pawl.walk_documents('', array[$1::bigint], '{0}', 4000)", [ids.schoolId]),
  )
  const filters = plans.flatMap(({ nodes }) => nodes.flatMap((node) => node['Join Filter'] ?? []))
  expect(plans.length).toBeGreaterThan(1)
  expect(filters.filter((filter) => /\bw(_\d+)?\.id\b/.test(filter))).toEqual([])
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
