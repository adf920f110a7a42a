// Every statement of the engine, explained on seeded tables with the engine's own planner settings, as generic plans: what the header of a
// file says about its plan is compared with the plan. A statement that is on its index only while the statistics are kind would be found
// here, because the same statements are planned in several states of the tables.

import { readdirSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Connection } from '../src/db/driver.ts'
import { sourcesIn, statement } from '../src/db/statement.ts'
import { createDatabase, type TestDatabase } from './support/database.ts'

interface SqlFile {
  readonly name: string
  readonly path: string
  readonly source: string
  readonly text: string
}

const source = new URL('../src/', import.meta.url)
const sqlFolders = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((path) => /^\w+[\\/]sql$/.test(path))
/** Planned by other settings, and so explained in a test of their own folder: plans.pg.test.ts. */
const explainedElsewhere = ['records', 'documents']
const explained = sqlFolders.map((path) => path.split(/[\\/]/)[0]!).filter((folder) => !explainedElsewhere.includes(folder))
const files: readonly SqlFile[] = explained.flatMap((folder) =>
  [...sourcesIn(new URL(`${folder}/sql/`, source))].map(([name, text]) => ({
    name,
    path: `${folder}: ${name}`,
    source: text,
    text: statement(new URL(`${folder}/any.ts`, source).href, name).text,
  })),
)

/** Why a statement that changes a job names no fence in its `where`. Any other must. */
const withoutFence: Readonly<Record<string, string>> = {
  claim: 'takes rows that are ready, under their lock, and gives them a new fence',
  'claim-suspect': 'takes a row that is ready, under its lock, and gives it a new fence',
  promote: 'changes rows that are scheduled, under their lock; nobody holds them',
  'release-unknown': 'gives back what its own incarnation holds, under the lock of the rows',
  cancel: "is a person's decision; deleting the row is what refuses the holder's late write",
  retry: 'changes only rows that are dead or scheduled; nobody holds them',
}

const headerPattern =
  /^-- (?!Locks:|Plan:)[A-Z][^\n]+(\n-- [^\n]+)*\n-- Locks: [^\n]+(\n-- [^\n]+)*\n-- Plan: [^\n]+(\n-- [^\n]+)*\n-- (No row|One row|Rows?\b)[^\n]*(\n-- [^\n]+)*\n$/

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly 'Actual Loops'?: number
  readonly Plans?: readonly PlanNode[]
}

const withBatches = 'batches with items'
const states: Readonly<Record<string, string>> = {
  'statistics of empty tables': 'select 1',
  'only ready jobs': `
    insert into pawl.job (queue, kind, state, due, run_at, payload)
      select 'q' || n % 3, 'k' || n % 5, 'ready', now(), now(), '1' from generate_series(1, 20000) n;
    insert into pawl.job_history (id, fence, created_at, finished_at, attempt, crashes, priority, payload_version, tenant, queue, kind, outcome, payload)
      select n, n, now(), now() + (n % 3) * interval '1 day', 1, 0, 0, 1, '', 'q', 'k', 'done', '1' from generate_series(1, 20000) n;
    insert into pawl.job_attempt (job_id, fence, ended_at, attempt, tenant, kind, outcome)
      select n, n, now() + (n % 3) * interval '1 day', 1, '', 'k', 'failed' from generate_series(1, 20000) n;
    insert into pawl.once (namespace, key, expires_at) select 'n', n::text, now() + interval '1 day' from generate_series(1, 5000) n`,
  'events with and without positions': `
    insert into pawl.event (aggregatetype, aggregateid, type, payload, created_at)
      select 'a', (n % 100)::text, 'T', '1', now() + (n % 3) * interval '1 day' from generate_series(1, 20000) n;
    select pawl.rebase_events();
    insert into pawl.event (aggregatetype, aggregateid, type, payload) select 'a', (n % 100)::text, 'T', '1' from generate_series(1, 20000) n`,
  'only running jobs, and workers of which every other one is closed': `
    insert into pawl.worker (lease_until, closed_at, close_reason)
      select now(), case when n % 2 = 0 then now() end, case when n % 2 = 0 then 'stopped' end from generate_series(1, 1000) n;
    insert into pawl.worker_process (id, name, host, pid, release, queues, kinds, concurrency)
      select id, 'w', 'h', 1, 'r', '{q}', '{k}', 1 from pawl.worker;
    update pawl.job set state = 'running', holder = 1 + id % 4, run_until = now() + interval '1 hour', fence = 1`,
  [withBatches]: `
    insert into pawl.batch (name, track, queue, policy, step, total, units, allowance, allowance_ms, state, fence, started_at, deadline)
      select 'b', 't' || n, 'q', 'refuse', 'step', 1000, 0, '{}', 1000, 'running', 1, now(), now() from generate_series(1, 20) n;
    insert into pawl.batch_item (batch_id, n, key, data, units)
      select b.id, n, n::text, '1', 0 from pawl.batch b cross join generate_series(1, 1000) n`,
  'one job left of many, and no vacuum yet': 'delete from pawl.job where id <> (select max(id) from pawl.job)',
}

let db: TestDatabase
let connection: Connection
/** Indexes of partitions, by the index of the table that they belong to. */
let parentOf: Map<string, string>
let indexNames: Set<string>
/** What is wrong with the plans, found in every state before the first test. */
const faults: { readonly path: string; readonly fault: string }[] = []

beforeAll(async () => {
  db = await createDatabase()
  const options = {
    url: db.url,
    pooler: 'none',
    connectTimeoutMs: 10_000,
    queryTimeoutMs: 60_000,
    applicationName: 'pawl test',
  } as const
  // With nothing but the catalogue in the search path, a relation that is not qualified is an error.
  connection = new Connection(options, 'explain', { settings: ['search_path=pg_catalog'] })
  parentOf = new Map(
    (
      await db.query<{ child: string; parent: string }>(
        `select c.relname as child, p.relname as parent from pg_inherits i
         join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent where p.relkind = 'I'`,
      )
    ).map(({ child, parent }) => [child, parent]),
  )
  indexNames = new Set(
    (await db.query<{ name: string }>("select indexname as name from pg_indexes where schemaname = 'pawl'")).map(
      ({ name }) => name,
    ),
  )
  for (const [state, sql] of Object.entries(states)) {
    await db.query(sql)
    await db.query('analyze')
    for (const file of files) faults.push(...(await planFaults(file, state)))
  }
})
afterAll(async () => {
  await connection.close()
  await db.drop()
})

function* nodesOf(node: PlanNode): Generator<PlanNode> {
  yield node
  for (const child of node.Plans ?? []) yield* nodesOf(child)
}

async function explain(text: string): Promise<PlanNode[]> {
  const [row] = await connection.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(`explain (generic_plan, format json) ${text}`)
  return [...nodesOf(row!['QUERY PLAN'][0]!.Plan)]
}

const usedIndexes = (nodes: readonly PlanNode[]) =>
  new Set(
    nodes.flatMap((node) => (node['Index Name'] === undefined ? [] : [parentOf.get(node['Index Name']) ?? node['Index Name']])),
  )

/** While its tables are empty, every index of a batch costs the planner the same. */
const hasBatches = (state: string): boolean => Object.keys(states).indexOf(state) >= Object.keys(states).indexOf(withBatches)

/** The index names and scans that the header promises, in the first sentence about its plan. */
function promised(file: SqlFile): { indexes: string[]; isTid: boolean } {
  const plan = /^-- Plan: ([^.]*)\./m.exec(file.source)![1]!
  return {
    indexes: [...new Set(plan.match(/\b[a-z_]+\b/g))].filter((word) => indexNames.has(word)),
    isTid: /TID scan/.test(plan),
  }
}

/** Tables of events and of jobs grow without end: none of these statements may read one of them whole. */
const neverScanned = (name: string): RegExp =>
  ['read-log', 'lag'].includes(name) ? /^(event|log_page|job(_history|_attempt)?)/ : /^job(_history.*|_attempt.*)?$/

/** An index of live jobs begins with dead entries while an old snapshot stays open: each scan of one has a condition to start from. */
const isWalk = (node: PlanNode): boolean =>
  /^job_(?!history|attempt)/.test(node['Index Name'] ?? '') && node['Index Cond'] === undefined

async function planFaults(file: SqlFile, state: string): Promise<{ path: string; fault: string }[]> {
  const nodes = await explain(file.text)
  const { isTid, ...promises } = promised(file)
  const isTied = (index: string) => index.startsWith('batch_') && !hasBatches(state)
  const indexes = promises.indexes.filter((index) => !isTied(index))
  const used = usedIndexes(nodes)
  const is = (type: string, relation: RegExp) => (node: PlanNode) =>
    node['Node Type'] === type && relation.test(node['Relation Name'] ?? '')
  const found = [
    ...indexes.filter((index) => !used.has(index)).map((index) => `does not use ${index}`),
    ...(isTid && !nodes.some(is('Tid Scan', /^job$/)) ? ['has no TID scan of job'] : []),
    ...nodes.filter(is('Seq Scan', neverScanned(file.name))).map((node) => `scans ${node['Relation Name']} in full`),
    ...nodes.filter(isWalk).map((node) => `walks ${node['Index Name']} from end to end`),
    // Suspects are few; numbering them by kind sorts them.
    ...(file.name === 'claim' && nodes.some((node) => /Sort/.test(node['Node Type'])) ? ['sorts'] : []),
  ]
  return found.map((fault) => ({ path: file.path, fault: `with ${state}: ${fault}` }))
}

function textFaults({ name, source, text }: SqlFile): string[] {
  const header = source.slice(0, source.search(/^(?!--)/m))
  const body = source.slice(header.length)
  const changesJobs = /(?:update|delete from) pawl\.job\b/.test(text)
  const hasFence = /\b[a-z]\.fence = (?:[a-z]\.fence|:fence::bigint)/.test(source)
  return [
    ...(headerPattern.test(header) ? [] : ['its header does not say what it does, its locks, its plan and what its rows mean']),
    ...(body.match(/(?<![:\w]):[a-z_]+\b(?!::)/g) ?? []).map((parameter) => `${parameter} has no cast`),
    ...(/select \*|\.\*/.test(body) ? ['selects *'] : []),
    ...(changesJobs && hasFence !== (withoutFence[name] === undefined) ? ['changes jobs without naming the fence'] : []),
  ]
}

test.each(files)('$path has its header, names its fence and uses its index', (file) => {
  expect([...textFaults(file), ...faults.filter(({ path }) => path === file.path).map(({ fault }) => fault)]).toEqual([])
})

/** Whether its outermost statement is a select, or has a `returning`. */
function returnsRows(text: string): boolean {
  let outer = text.replace(/--[^\n]*/g, '').replace(/'(?:[^']|'')*'/g, "''")
  for (let last = ''; last !== outer; ) {
    last = outer
    outer = outer.replace(/\([^()]*\)/g, '')
  }
  return /\breturning\b/.test(outer) || !/\b(insert into|delete from)\b|(?<!\b(for|key) )\bupdate\b/.test(outer)
}

test('a header says that no row is returned exactly where none is', () => {
  const all = sqlFolders.flatMap((folder) =>
    [...sourcesIn(new URL(`${folder}/`, source))].map(([name, text]) => ({ path: `${folder}: ${name}`, text })),
  )
  expect(all.length).toBeGreaterThan(files.length)
  const wrong = all.filter(({ text }) => text.includes('-- No row is returned') === returnsRows(text))
  expect(wrong.map(({ path }) => path)).toEqual([])
})

test('a statement without header, cast, fence or index is found', async () => {
  const text = 'update pawl.job j set state = :state from pawl.job k where j.payload = k.payload'
  const bad = { name: 'bad', path: 'bad.sql', source: `-- Plan: job_pkey.\n${text}`, text: text.replace(':state', '$1') }
  expect(textFaults(bad)).toHaveLength(3)
  expect((await planFaults(bad, 'anything')).map(({ fault }) => fault)).toEqual(
    expect.arrayContaining(['with anything: does not use job_pkey', 'with anything: scans job in full']),
  )
})

test('claim, settle and their relatives promise what they must', () => {
  const plan = (name: string) => promised(files.find((file) => file.name === name)!)
  expect(plan('claim')).toEqual({ indexes: ['job_ready'], isTid: true })
  expect(plan('claim-suspect')).toEqual({ indexes: ['job_suspect'], isTid: true })
  expect(plan('promote')).toEqual({ indexes: ['job_scheduled'], isTid: true })
  for (const name of ['settle', 'settle-failed', 'lock-group', 'touch', 'cancel', 'retry', 'fates'])
    expect(plan(name).indexes).toContain('job_pkey')
})

test('[P8] seen() of an event without a position does not read the log', async () => {
  await db.query(`insert into pawl.projection (name, kind, live_generation) values ('plans', 'log', 1);
    insert into pawl.cursor (name, kind) values ('plans', 'log'); insert into pawl.cursor_position (name) values ('plans')`)
  const tick = () => db.query('select pawl.sequence_events(1000000)')
  await tick()
  const [event] = await db.query<{ xid: string }>(
    "insert into pawl.event (aggregatetype, aggregateid, type) values ('a', 'k', 'T') returning xid::text",
  )
  const seen = statement(new URL('projections/any.ts', source).href, 'seen')
  const pagesRead = async () => {
    const explaining = { ...seen, preparedName: '', text: `explain (analyze, format json) ${seen.text}` }
    const values = { tenant: '', name: 'plans', xid: event!.xid }
    const [row] = await connection.run<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(explaining, values)
    const looks = [...nodesOf(row!['QUERY PLAN'][0]!.Plan)].filter((node) => node['Relation Name'] === 'log_page')
    return looks.map((node) => node['Actual Loops'])
  }
  expect(await pagesRead()).toEqual([0])
  await tick()
  expect(await pagesRead()).toEqual([1])
})
