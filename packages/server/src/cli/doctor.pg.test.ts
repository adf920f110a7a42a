import { moveClock } from 'pawl/testing'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../../pawl/test/support/database.ts'
import { checkNode } from './doctor/server-checks.ts'
import { pawl as cli } from './test-support/cli.ts'
import { faultsIn } from './test-support/faults.ts'

async function healthy(options: { isEmpty?: boolean } = {}): Promise<TestDatabase> {
  const db = await createDatabase(options)
  onTestFinished(() => db.drop())
  return db
}

async function faults(url: string, more: readonly string[] = []): Promise<string[]> {
  return faultsIn(await cli(['doctor', '-o', 'json', '--database-url', url, ...more]))
}

test('a healthy database has no faults and one line per check', async () => {
  const db = await healthy()
  expect(await faults(db.url)).toEqual([])
  const { code, stdout, stderr } = await cli(['doctor', '--database-url', db.url])
  expect(code).toBe(0)
  expect(stdout).toMatch(/^ok +node +\d/)
  expect(
    stdout
      .trim()
      .split('\n')
      .every((line) => line.startsWith('ok ')),
  ).toBe(true)
  expect(stderr).toContain('No faults.')
  expect(stderr).not.toContain(new URL(db.url).password)
})

test('[S6] doctor finds a setting of the database that risks committed work', async () => {
  const db = await healthy()
  await db.query(`alter database ${db.name} set synchronous_commit = off`)
  expect(await faults(db.url)).toEqual([
    expect.stringMatching(/^synchronous_commit: off: .* -> alter database <name> reset synchronous_commit/),
  ])
})

test('[S6] doctor finds a schema that is missing', async () => {
  expect(await faults((await healthy({ isEmpty: true })).url)).toEqual([
    expect.stringMatching(/^schema: .* missing from this database\. -> pawl migrate$/),
  ])
})

test('[S6] doctor finds a schema that is old', async () => {
  const db = await healthy()
  await db.query("delete from pawl.migration where name like '0002%'")
  expect(await faults(db.url)).toEqual([expect.stringMatching(/^schema: The schema lacks 0002-jobs\. -> pawl migrate$/)])
})

test('[S6] doctor finds a migration that was applied with different SQL', async () => {
  const db = await healthy()
  await db.query("update pawl.migration set checksum = 'other' where name like '0002%'")
  expect(await faults(db.url)).toContainEqual(expect.stringMatching(/^schema: 0002-jobs was applied with different SQL/))
})

test('[S6] doctor finds a changed schema, and its fix repairs it', async () => {
  const db = await healthy()
  await db.query('drop index pawl.job_ready')
  const [drift, ...rest] = await faults(db.url)
  expect(rest).toEqual([])
  expect(drift).toMatch(/^drift: index \S*job_ready is missing\. -> create index /i)
  await db.query(drift!.split(' -> ')[1]!)
  expect(await faults(db.url)).toEqual([])
})

test("[S6] doctor finds a role whose own tables would land in Pawl's schema", async () => {
  const db = await healthy()
  const url = `${db.url}?options=${encodeURIComponent('-c search_path="$user",public')}`
  expect(new URL(url).username).toBe('pawl')
  expect(await faults(url)).toEqual([
    expect.stringMatching(
      /^search path: Schema pawl is in the search path of role pawl .* -> alter role "pawl" set search_path = public;/,
    ),
  ])
  const empty = `${(await healthy({ isEmpty: true })).url}?options=${encodeURIComponent('-c search_path="$user",public')}`
  expect(await faults(empty)).toContainEqual(
    expect.stringMatching(/^search path: Schema pawl is in the search path of role pawl/),
  )
  expect(await faults(`${db.url}?options=${encodeURIComponent('-c search_path=public,pawl')}`)).toHaveLength(1)
})

/** Roles belong to the whole server: dropped with the test. */
async function withRole(db: TestDatabase, name: string): Promise<{ role: string; url: string }> {
  const role = `${name}_${db.name}`
  await db.query(`create role ${role} login password 'secret'`)
  onTestFinished(async () => {
    await db.query(`drop owned by ${role}; drop role ${role}`)
  })
  const url = new URL(db.url)
  url.username = role
  url.password = 'secret'
  return { role, url: url.href }
}

test('[S6] doctor finds what this role may not do, and prints the grants', async () => {
  const db = await healthy()
  const { role, url } = await withRole(db, 'reader')
  expect(await faults(url)).toEqual([
    expect.stringMatching(/^rights: The role reader_\w+ may not use the schema pawl\. -> grant usage on schema pawl/),
  ])
  await db.query(`grant usage on schema pawl to ${role}; grant select on all tables in schema pawl to ${role}`)
  const [missing] = await faults(url)
  expect(missing).toMatch(/^rights: The role lacks .*delete, insert, update on pawl\.job/)
  expect(missing).toContain('usage on pawl.job_serial')
  // The fix is SQL that runs as it is printed, and mends it.
  await db.query(missing!.split(' -> ')[1]!)
  const days = expect.stringMatching(
    /^rights: Workers with role reader_\w+ cannot create or drop daily partitions, which pawl owns.* -> run one worker as pawl; .* Do not grant pawl: it is a superuser\./,
  )
  expect(await faults(url)).toEqual([days])
  // A member that has the rights of the owner and cannot give it what it makes.
  await db.query(`grant pawl to ${role} with set false`)
  expect(await faults(url)).toEqual([days])
  await db.query(`grant pawl to ${role} with set true`)
  expect(await faults(url)).toEqual([])
})

test("[S6] doctor finds what is not its owner's, and mends it as printed", async () => {
  const db = await healthy()
  const { role } = await withRole(db, 'other')
  const [day] = await db.query<{ day: string }>(
    "select inhrelid::regclass::text as day from pg_inherits where inhparent = 'pawl.job_history'::regclass order by 1 limit 1",
  )
  await db.query(`alter table ${day!.day} owner to ${role}; alter function pawl.is_last_day_used owner to ${role};
    alter sequence pawl.job_serial owner to ${role}`)
  const [found, ...rest] = await faults(db.url)
  expect(rest).toEqual([])
  expect(found).toMatch(
    /^owner: Schema pawl belongs to pawl, but not table pawl\.job_history_\w+ \(other_\w+\), sequence pawl\.job_serial/,
  )
  await db.query(found!.split(' -> ')[1]!)
  expect(await faults(db.url)).toEqual([])
})

test("[S6] doctor finds roles that may create in Pawl's schema", async () => {
  const db = await healthy()
  const { role } = await withRole(db, 'maker')
  await db.query(`grant create on schema pawl to ${role}, public`)
  const found = await faults(db.url)
  expect(found).toEqual([
    expect.stringMatching(
      /^owner: The role maker_\w+ may create in schema pawl, .* -> revoke create on schema pawl from "maker_/,
    ),
    expect.stringMatching(/^owner: Every role may create in schema pawl, .* -> revoke create on schema pawl from public;$/),
  ])
  for (const line of found) await db.query(line.split(' -> ')[1]!)
  expect(await faults(db.url)).toEqual([])
})

test('[S6] doctor finds search path schemas in which other roles may create', async () => {
  const db = await healthy()
  const { role } = await withRole(db, 'maker')
  await db.query(`create schema aside; grant create on schema aside, public to ${role}, public`)
  const found = await faults(db.url)
  expect(found).toEqual([
    expect.stringMatching(
      /^search path: The role maker_\w+ may create objects in schema public, .* -> revoke create on schema "public" from "maker_/,
    ),
    expect.stringMatching(
      /^search path: Every role may create objects in schema public, .* -> revoke create on schema "public" from public;/,
    ),
  ])
  for (const line of found) await db.query(/-> (revoke [^;]*);/.exec(line)![1]!)
  expect(await faults(db.url)).toEqual([])
})

test('[S6] doctor finds a transaction that has been open for long', async () => {
  const db = await healthy()
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    await client.query('select txid_current()')
    const [found] = await faults(db.url, ['--long-transaction', '1ms'])
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
    expect(found).toContain(`select pg_terminate_backend(${rows[0]!.pid});`)
    expect(await faults(db.url)).toEqual([])
  } finally {
    await client.query('rollback')
    client.release()
  }
})

test('[S6] doctor finds a dead worker and jobs that no worker runs', async () => {
  const db = await healthy()
  await db.query(`insert into pawl.worker (id, seen_at, lease_until) values (7, pawl.now() - interval '1 hour', pawl.now() - interval '59 minutes');
    insert into pawl.worker_process (id, name, host, pid, release, queues, kinds, concurrency)
    values (7, 'gone', 'elsewhere', 7, '0.1.0', '{default}', '{email}', 1)`)
  await db.query("select pawl.enqueue_many('', 'default', 'nobody', '[1, 2]', p_run_at => pawl.now() - interval '1 minute')")
  expect(await faults(db.url)).toEqual([
    expect.stringMatching(/^workers: Worker \d+ \(gone, pid 7 on elsewhere\) has been silent for 1h/),
    expect.stringMatching(/^workers: No worker that runs jobs is alive\. Jobs that are waiting: 2\. -> start one/),
    expect.stringMatching(/^kinds: No worker runs kind nobody in queue default, where it has 2 jobs \(/),
  ])
})

test('[S6] doctor finds open alerts, of one tenant if asked', async () => {
  const db = await healthy()
  await db.query(
    "select pawl.raise_alert('', 'job.dead', 'email', 'smtp is down'), pawl.raise_alert('acme', 'job.dead', 'report', 'no paper')",
  )
  expect(await faults(db.url)).toHaveLength(2)
  expect(await faults(db.url, ['--tenant', 'acme'])).toEqual([
    expect.stringMatching(
      /^alerts: job\.dead report of tenant acme, 1 time,.*no paper -> pawl jobs list --state dead --kind report/,
    ),
  ])
})

test('says how many alerts it does not show', async () => {
  const db = await healthy()
  await db.query("select pawl.raise_alert('', 'job.dead', 'kind ' || n, 'down') from generate_series(1, 25) n")
  const found = await faults(db.url)
  expect(found).toHaveLength(21)
  expect(found.at(-1)).toMatch(/^alerts: 5 more open; these are the 20 newest\. -> pawl\.alerts/)
})

test('jobs that no worker runs are named with tenant and cancel command', async () => {
  const db = await healthy()
  await db.query("select pawl.enqueue('nobody', tenant => 'acme', run_at => now() - interval '1 minute')")
  expect(await faults(db.url)).toContainEqual(
    expect.stringMatching(
      /^kinds: No worker runs kind nobody of tenant acme .* it has 1 job \(.* pawl jobs cancel <id> --tenant acme$/,
    ),
  )
})

test('jobs of batches that no worker runs are fixed by a deploy', async () => {
  const db = await healthy()
  for (const kind of ['pawl.batch.re.parse.item', 'pawl.batch.watch'])
    await db.query("select pawl.enqueue_many('acme', 'default', $1, '[{}]')", [kind])
  await db.query("update pawl.job set run_at = run_at - interval '1 minute'")
  const found = (await faults(db.url)).filter((fault) => fault.startsWith('kinds:')).sort()
  expect(found).toEqual([
    expect.stringMatching(
      /kind pawl\.batch\.re\.parse\.item .* -> deploy a worker that defines the batch 're\.parse' for that queue$/,
    ),
    expect.stringMatching(/kind pawl\.batch\.watch .* -> deploy a worker that defines it for that queue$/),
  ])
})

test('[S6] doctor finds a clock of Pawl that was moved', async () => {
  const db = await healthy()
  await moveClock(db.pool as never, 3_600_000)
  expect(await faults(db.url)).toContainEqual(
    expect.stringMatching(/^pawl\.now\(\): is 3600 s off .* -> create or replace function pawl\.now\(\)/),
  )
})

test('[S6] doctor finds an old Node', () => {
  expect(checkNode('20.18.3')).toMatchObject({ state: 'fault', fix: 'install Node 20.19 or newer' })
  expect(checkNode('20.19.0')).toMatchObject({ state: 'ok' })
  expect(checkNode('24.1.0')).toMatchObject({ state: 'ok' })
})

test('finds projections and sinks that no living process runs', async () => {
  const db = await healthy()
  const pawl = db.pawl()
  pawl.projections.define('sales', { each: () => undefined })
  pawl.projections.sink('mailer', { handle: () => undefined })
  const runner = pawl.worker()
  await runner.start()
  const { stdout } = await cli(['doctor', '-o', 'json', '--database-url', db.url])
  expect(JSON.parse(stdout)).toMatchObject({
    faults: 0,
    checks: expect.arrayContaining([
      { check: 'workers', state: 'ok', what: '1 worker alive, in 1 process' },
      { check: 'projections', state: 'ok', what: 'each has a process that runs it' },
    ]),
  })
  await runner.stop()
  await pawl.events.append({ type: 'Sold', aggregateType: 'shop', key: 'a', data: {} })
  expect(await pawl.projections.status()).toMatchObject([
    { name: 'mailer', lag: 1, holder: null },
    { name: 'sales', lag: 1, holder: null },
  ])
  expect(await faults(db.url)).toEqual([
    expect.stringMatching(/^projections: No running process runs the sink mailer: it gets no events\. -> start one/),
    expect.stringMatching(/^projections: No running process runs the projection sales: .* pawl\.projections\.forget\('sales'/),
  ])
})

test('a refresh of documents without a process is not to be forgotten', async () => {
  const db = await healthy()
  const pawl = db.pawl()
  pawl.documents.define('School', { identity: ['schoolId'] })
  const runner = pawl.worker()
  await runner.start()
  await runner.stop()
  const [found, ...others] = (await faults(db.url)).filter((fault) => fault.startsWith('projections:'))
  expect(found).toMatch(/the projection pawl\.documents: .* -> start a worker of a process that defines documents: pawl worker/)
  expect(found).not.toContain('projections.forget')
  expect(others).toEqual([])
})
