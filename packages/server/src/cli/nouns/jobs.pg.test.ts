import type { Pawl } from 'pawl'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../../../pawl/test/support/database.ts'
import { debianProgram } from '../../../../pawl/test/support/debian.ts'
import { startPgBouncer } from '../../../../pawl/test/support/pgbouncer.ts'
import { pawl as cli, pawlJson } from '../test-support/cli.ts'

const pgbouncer = await debianProgram('pgbouncer')

let db: TestDatabase
let pawl: Pawl
let on: string[]
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  on = ['--database-url', db.url]
})
afterAll(() => db.drop())

/** Runs jobs of one kind to their end in this process. */
async function work(kind: string, run: () => unknown, options: object = {}): Promise<void> {
  const own = db.pawl()
  own.jobs.define(kind, { run, ...options })
  const worker = own.worker()
  await worker.start()
  await worker.whenIdle()
  await worker.stop()
}

async function deadJob(): Promise<string> {
  const { id } = await pawl.jobs.enqueue('dies', {}, { maxAttempts: 1 })
  await work('dies', () => Promise.reject(new Error('no')))
  return id
}

test('add prints the id alone; without a worker stderr says so', async () => {
  const { code, stdout, stderr } = await cli(['jobs', 'add', 'plain', '{"n": 1}', ...on])
  expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringMatching(/^\d{19}\n$/) })
  expect(stderr).toContain("No running worker works the queue 'default'")
  expect(await pawl.jobs.get(stdout.trim())).toMatchObject({ kind: 'plain', payload: { n: 1 }, state: 'ready' })
})

test('add takes its payload from stdin and its options from flags', async () => {
  const { id } = await pawlJson<{ id: string }>(
    ['jobs', 'add', 'flagged', '-', '--delay', '1h', '--priority', '-5', '--queue', 'slow', '--max-attempts', '3', ...on],
    { input: '{"from": "stdin"}' },
  )
  expect(await pawl.jobs.get(id)).toMatchObject({
    state: 'scheduled',
    priority: -5,
    queue: 'slow',
    maxAttempts: 3,
    payload: { from: 'stdin' },
  })
})

test('list filters, gives pages in JSON, and shows a table to people', async () => {
  const { ids } = await pawl.jobs.enqueueMany('listed', [1, 2, 3])
  const first = await pawlJson<{ items: { id: string }[]; next: string }>([
    'jobs',
    'list',
    '--kind',
    'listed',
    '--limit',
    '2',
    ...on,
  ])
  const second = await pawlJson<{ items: { id: string }[]; next: null }>([
    'jobs',
    'list',
    '--kind',
    'listed',
    '--limit',
    '2',
    '--after',
    first.next,
    ...on,
  ])
  expect([...first.items, ...second.items].map(({ id }) => id)).toEqual(ids.toReversed())
  expect(second.next).toBeNull()
  const lines = await cli(['jobs', 'list', '--kind', 'listed', '-o', 'jsonl', ...on])
  expect(
    lines.stdout
      .trim()
      .split('\n')
      .map((line) => (JSON.parse(line) as { id: string }).id),
  ).toEqual(ids.toReversed())
  const table = await cli(['jobs', 'list', '--kind', 'listed', ...on])
  expect(table.stdout.split('\n')[0]).toMatch(/^id +kind +queue +state +attempt +created +runs +last error$/)
  expect(table.stdout.split('\n')[1]).toMatch(new RegExp(`^${ids[2]} +listed +default +ready +0 `))
})

test('list of nothing prints nothing on stdout', async () => {
  expect(await cli(['jobs', 'list', '--kind', 'nobody', '--state', 'dead', ...on])).toEqual({
    code: 0,
    stdout: '',
    stderr: 'No dead jobs of kind nobody.\n',
  })
  expect(await pawlJson(['jobs', 'list', '--kind', 'nobody', ...on])).toEqual({ items: [], next: null })
})

test('get shows a job with its attempts, without its control characters', async () => {
  const { id } = await pawl.jobs.enqueue('shown', { text: 'a\u001b[2Jb' }, { maxAttempts: 1 })
  await work('shown', () => Promise.reject(new Error('red \u001b[31malert')))
  const shown = await cli(['jobs', 'get', id, ...on])
  expect(shown.stdout).toMatch(/^state +dead$/m)
  expect(shown.stdout).toMatch(/1 +failed .*Error: red /)
  expect(shown.stdout).not.toContain('\u001b')
  expect(await pawlJson(['jobs', 'get', id, ...on])).toMatchObject({
    id,
    state: 'dead',
    attempts: [{ attempt: 1, outcome: 'failed' }],
  })
})

test('retry makes a dead job ready; again it is a conflict', async () => {
  const id = await deadJob()
  const act = ['--by', 'ada', '--reason', 'the relay is back']
  expect(await pawlJson(['jobs', 'retry', id, ...act, ...on])).toMatchObject({ items: [{ id, state: 'ready' }] })
  expect(await db.query('select actor, action, reason from pawl.audit where subject = $1', [`job ${id}`])).toEqual([
    { actor: 'ada', action: 'jobs.retry', reason: 'the relay is back' },
  ])
  const again = await cli(['jobs', 'retry', id, ...on])
  expect(again.code).toBe(4)
  expect(again.stderr).toMatch(
    /^error +Job \d+ is ready and cannot be retried\.\nnext +pawl jobs why <id>\ncode +PAWL_WRONG_STATE \(exit 4\)\n$/,
  )
})

test('cancel tries every id, and the first failure decides the exit code', async () => {
  const { ids } = await pawl.jobs.enqueueMany('unwanted', [1, 2])
  const { code, stdout, stderr } = await cli([
    'jobs',
    'cancel',
    ids[0]!,
    '1',
    ids[1]!,
    '--reason',
    'not needed',
    '-o',
    'json',
    ...on,
  ])
  expect(code).toBe(3)
  expect(JSON.parse(stdout)).toEqual({ items: ids.map((id) => ({ id, state: 'cancelled', was: 'ready' })) })
  expect(JSON.parse(stderr)).toMatchObject({ error: { code: 'PAWL_NOT_FOUND', exit: 3 } })
  expect(await pawl.jobs.get(ids[0]!)).toMatchObject({ state: 'cancelled', lastError: 'not needed' })
  const { id } = await pawl.jobs.enqueue('unwanted', 3)
  expect((await cli(['jobs', 'cancel', id, '--revision', '99', ...on])).code).toBe(4)
})

test('why says what a job waits for', async () => {
  const { id } = await pawl.jobs.enqueue('waits', {}, { delay: '1h' })
  expect(await pawlJson(['jobs', 'why', id, ...on])).toMatchObject({ id, state: 'scheduled', reasons: [{ code: 'scheduled' }] })
  expect((await cli(['jobs', 'why', id, ...on])).stdout).toMatch(/^state +scheduled\nwhy +It is scheduled for /)
})

test('a tenant sees its own jobs and no others', async () => {
  const { id } = await pawlJson<{ id: string }>(['jobs', 'add', 'theirs', '--tenant', 'acme', ...on])
  expect((await cli(['jobs', 'get', id, ...on])).code).toBe(3)
  expect((await cli(['jobs', 'get', id, '--tenant', 'other', ...on])).code).toBe(3)
  expect(await pawlJson(['jobs', 'get', id, '--tenant', 'acme', ...on])).toMatchObject({ id, tenant: 'acme' })
})

describe('[S6] exit codes', () => {
  test('2: a wrong call, with a suggestion and nothing on stdout', async () => {
    const cases: [string[], RegExp][] = [
      [['jobs', 'lsit'], /Did you mean list/],
      [['jobs', 'list', '--stat', 'dead'], /Did you mean --state/],
      [['jobs', 'list', '--state', 'asleep', ...on], /Allowed choices are scheduled/],
      [['jobs', 'list', '--limit', '0', ...on], /an integer from 1 to 500/],
      [['jobs', 'add', 'x', '{', ...on], /not valid JSON/],
      [
        ['jobs', 'add', 'x', '{"a": [12345678901234567890]}', ...on],
        /the number 12345678901234567890, .*\n.*pass it as a string/,
      ],
      [['jobs', 'add', 'x', '--delay', 'soon', ...on], /delay must be a duration .* got 'soon'/],
      [['jobs', 'add', 'x', '--queue', '', ...on], /queue must be a string of 1 to 100 characters/],
      [['jobs', 'add', 'x', '--delay', '5s', '--at', '2030-01-31T08:00:00Z', ...on], /give delay or runAt, not both/],
      [['jobs', 'list'], /No database given/],
      [['jobs', 'list', '--database-url', 'mysql://x'], /--database-url must be the URL of a PostgreSQL database/],
    ]
    for (const [args, reason] of cases) {
      const { code, stdout, stderr } = await cli(args)
      expect({ args, code, stdout }).toEqual({ args, code: 2, stdout: '' })
      expect(stderr).toMatch(reason)
    }
  })

  test('3: there is no such job', async () => {
    expect((await cli(['jobs', 'get', '12', ...on])).code).toBe(3)
    expect((await cli(['jobs', 'why', 'abc', ...on])).code).toBe(3)
  })

  test('5: the database cannot be used; no stack unless -v', async () => {
    const wrong = new URL(db.url)
    wrong.password = 'wrong'
    const missing = new URL(db.url)
    missing.pathname = '/not_there'
    for (const url of ['postgres://pawl@127.0.0.1:1/x', wrong.href, missing.href]) {
      const { code, stdout, stderr } = await cli(['jobs', 'list', '--database-url', url])
      expect({ code, stdout }).toEqual({ code: 5, stdout: '' })
      expect(stderr).toMatch(/^error .*\nnext .*\ncode +PAWL_UNAVAILABLE \(exit 5\)\n$/)
      expect(stderr).not.toContain('    at ')
    }
    expect((await cli(['jobs', 'list', '-v', '--database-url', wrong.href])).stderr).toContain('    at ')
  })

  test('5: the commands that connect by themselves, through names of several addresses', async () => {
    const off = ['--database-url', 'postgres://pawl@localhost:1/x']
    for (const args of [['doctor'], ['migrate', '--dry-run'], ['migrate', '--sql']]) {
      const { code, stdout, stderr } = await cli([...args, ...off])
      expect({ args, code, stdout }).toEqual({ args, code: 5, stdout: '' })
      expect(stderr).toMatch(
        /error +The database cannot be reached \(.*ECONNREFUSED.*\)\.\nnext .*\ncode +PAWL_UNAVAILABLE \(exit 5\)\n$/,
      )
    }
  })

  test('6: the schema is not there', async () => {
    const empty = await createDatabase({ isEmpty: true })
    try {
      const { code, stderr } = await cli(['jobs', 'list', '--database-url', empty.url])
      expect(code).toBe(6)
      expect(stderr).toMatch(/next +pawl migrate/)
    } finally {
      await empty.drop()
    }
  })
})

test('[S6] every command that ends answers -o json with JSON', async () => {
  const add = async () => (await pawlJson<{ id: string }>(['jobs', 'add', 'spoken', ...on])).id
  const id = await add()
  const commands = [['list'], ['get', id], ['why', id], ['cancel', id], ['add', 'spoken']].map((verb) => ['jobs', ...verb])
  for (const command of [...commands, ['migrate'], ['migrate', '--dry-run'], ['version']])
    expect(await pawlJson([...command, ...on])).toBeTypeOf('object')
  expect(await pawlJson(['jobs', 'retry', await deadJob(), ...on])).toBeTypeOf('object')
  // Faults or not, and errors on stderr.
  expect(JSON.parse((await cli(['doctor', '-o', 'json', ...on])).stdout)).toMatchObject({ checks: expect.any(Array) })
  expect(JSON.parse((await cli(['jobs', 'get', '12', '--json', ...on])).stderr)).toMatchObject({ error: { exit: 3 } })
})

test('the database comes from the environment, the flag before PAWL_DATABASE_URL before DATABASE_URL', async () => {
  const bad = 'postgres://pawl@127.0.0.1:1/x'
  expect((await cli(['jobs', 'list'], { env: { DATABASE_URL: db.url } })).code).toBe(0)
  expect((await cli(['jobs', 'list'], { env: { DATABASE_URL: bad, PAWL_DATABASE_URL: db.url } })).code).toBe(0)
  expect((await cli(['jobs', 'list', ...on], { env: { PAWL_DATABASE_URL: bad } })).code).toBe(0)
})

test('a named pooler is used; an unnamed one fails with the flag', async ({ skip }) => {
  if (!pgbouncer.ok) return skip(`missing ${pgbouncer.missing}`)
  const empty = await createDatabase({ isEmpty: true })
  onTestFinished(() => empty.drop())
  const { url } = await startPgBouncer(pgbouncer, empty.url)
  const env = { DATABASE_URL: url, PAWL_POOLER: 'transaction' }
  const told = ['--database-url', url, '--pooler', 'transaction']
  expect(await cli(['jobs', 'list', '--database-url', url])).toMatchObject({
    code: 5,
    stderr: expect.stringMatching(/next +the URL is of a pooler: add --pooler transaction/),
  })
  await pawlJson(['migrate'], { env })
  const { id } = await pawlJson<{ id: string }>(['jobs', 'add', 'pooled', '--delay', '1h', ...told])
  expect(await pawlJson(['jobs', 'list'], { env })).toMatchObject({ items: [{ id }] })
  expect(await pawlJson(['jobs', 'cancel', id, ...told])).toMatchObject({ items: [{ id, state: 'cancelled' }] })
})
