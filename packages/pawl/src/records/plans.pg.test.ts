// Every statement of records, explained on seeded tables as a generic plan with the settings of the callers' pool: what the header of a file
// says about its plan is compared with the plan, and no table of rows is read in full.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../test/support/database.ts'
import { sourcesIn, statement } from '../db/statement.ts'

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly Plans?: readonly PlanNode[]
}

const files = [...sourcesIn(new URL('./sql/', import.meta.url))].map(([file, source]) => ({
  file,
  source,
  text: statement(import.meta.url, file).text,
}))

/** 5,000 scopes, 100 of them with 1,000 records each, two versions of every fifth, 5,000 submissions of which 50 have staged rows. */
const seedSql = `
  insert into pawl.record_set (name, schema_version, definition) select 's' || n, 1, '{}' from generate_series(1, 2000) n;
  insert into pawl.record_scope (id, record_set, scope, committed, next_number, live)
    select n, 's', '["' || n || '"]', 60, 61, 1000 from generate_series(1, 5000) n;
  insert into pawl.submission (id, record_set, scope_id, origin, state, baseline, baseline_number, baseline_live, number, schema_version, missing_policy,
      ended_at, is_staged, expires_at)
    select n, 's' || n % 50, 1 + n % 1000, 'upload', case when n <= 4000 then 'submitted' else 'validated' end, 1, 1, 1, case when n <= 4000 then n end, 1, 'keep', now(), n % 100 = 0,
      case when n > 4000 then now() + interval '1 day' end from generate_series(1, 5000) n;
  insert into pawl.submission_row (submission, line, record_id, kind, is_new, type, key, hash, data)
    select 4950 + n % 50, n, n, case when n % 3 = 0 then 'unchanged' else 'created' end, true, 't', 'k' || n, gen_random_uuid(), '{}' from generate_series(1, 50000) n;
  insert into pawl.submission_error (submission, ordinal, line, code, reason) select 4900 + n % 50, n, n, 'c', 'r' from generate_series(1, 5000) n;
  insert into pawl.record (scope_id, type, key, id) select 1 + n % 100, 't', 'k' || n, n from generate_series(1, 100000) n;
  insert into pawl.record_version (record_id, number, submission, schema_version, status, hash, data)
    select n, 1, 1, 1, 'CREATED', gen_random_uuid(), '{"a": "b"}' from generate_series(1, 100000) n;
  insert into pawl.record_version (record_id, number, submission, schema_version, status, hash, data)
    select n, 2, 2, 1, 'UPDATED', gen_random_uuid(), '{"a": "c"}' from generate_series(1, 100000, 5) n;
  insert into pawl.job (queue, kind, state, due, run_at, payload) select 'q', 'k', 'ready', now(), now(), '1' from generate_series(1, 5000) n;
  insert into pawl.alert (code, subject, message, resolved_at) select 'c', n::text, 'm', now() from generate_series(1, 1000) n;`

let db: TestDatabase
let indexNames: Set<string>
beforeAll(async () => {
  db = await createDatabase()
  await db.query(seedSql)
  await db.query('analyze')
  const rows = await db.query<{ name: string }>("select indexname as name from pg_indexes where schemaname = 'pawl'")
  indexNames = new Set(rows.map(({ name }) => name))
})
afterAll(() => db.drop())

function* nodesOf(node: PlanNode): Generator<PlanNode> {
  yield node
  for (const child of node.Plans ?? []) yield* nodesOf(child)
}

describe.each(files)('$file', ({ source, text }) => {
  const header = source.slice(0, source.search(/^(?!--)/m))

  test('has a header of four lines, casts every parameter, selects no *', () => {
    expect(header).toMatch(
      /^-- (?!Locks:|Plan:)[A-Z][^\n]+(\n-- [^\n]+)*\n-- Locks: [^\n]+(\n-- [^\n]+)*\n-- Plan: [^\n]+(\n-- [^\n]+)*\n-- (No row|One row|Rows?\b)[^\n]*(\n-- [^\n]+)*\n$/,
    )
    const body = source.slice(header.length)
    expect(body.match(/(?<![:\w]):[a-z_]+\b(?!::)/g) ?? []).toEqual([])
    expect(body).not.toMatch(/select \*|\.\*/)
  })

  test('has the plan of its header, without scans of large tables', async () => {
    // Nothing but the catalogue in the search path: a relation that is not qualified is an error.
    const client = await db.pool.connect()
    try {
      await client.query('set search_path = pg_catalog')
      const answer = await client.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(`explain (generic_plan, format json) ${text}`)
      const nodes = [...nodesOf(answer.rows[0]!['QUERY PLAN'][0]!.Plan)]
      const promised = [...new Set(/^-- Plan: ([^.]*)\./m.exec(source)![1]!.match(/\b[a-z_]+\b/g))].filter((word) =>
        indexNames.has(word),
      )
      expect(nodes.flatMap((node) => node['Index Name'] ?? [])).toEqual(expect.arrayContaining(promised))
      if (/Nothing is sorted/.test(source)) expect(nodes.filter((node) => /Sort/.test(node['Node Type']))).toEqual([])
      const scanned = nodes.filter((node) => node['Node Type'] === 'Seq Scan').map((node) => node['Relation Name'])
      expect(
        scanned.filter((name) => /^(record|record_version|submission|submission_row|submission_error|job)$/.test(name ?? '')),
      ).toEqual([])
    } finally {
      await client.query('reset search_path')
      client.release()
    }
  })
})
