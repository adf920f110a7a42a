// Projectors that die, stop or are cut off, and a standby that goes on: every event is applied once, whatever the moment.

import { expect, test } from 'vitest'
import { endLeasesOf, type TestDatabase, until } from '../support/database.ts'
import { append, calmRunner, caughtUp, createLog, cursorOf, quickRunner } from '../support/projections.ts'
import { ProjectorProcess, standBy, terminateSessions } from '../support/projector-process.ts'
import { sceneSql } from './projections.ts'

/** Every event once, and the wallets are what a fold over the log gives. */
async function expectExact(db: TestDatabase, count: number): Promise<void> {
  const entries = await db.query<{ position: number; times: number }>(
    'select position::integer, count(*)::integer as times from entry group by position order by position',
  )
  expect(entries).toEqual(Array.from({ length: count }, (_, n) => ({ position: n + 1, times: 1 })))
  const differing = await db.query(
    `select * from (
       select aggregateid as id, sum((payload ->> 'amount')::bigint)::bigint as balance, count(*)::integer as changes from pawl.event group by 1
     ) folded full join wallet w using (id) where (folded.balance, folded.changes) is distinct from (w.balance, w.changes)`,
  )
  expect(differing).toEqual([])
}

/** The same code, from the first event into tables of its own, gives the same rows. */
async function expectRebuilt(db: TestDatabase): Promise<void> {
  const { pawl } = await standBy(db, 'wallets', 2)
  await pawl.projections.rebuild('wallets', { reason: 'a test' })
  await caughtUp(db, 'wallets', 2)
  expect(await pawl.projections.compare('wallets', { generation: 2 })).toMatchObject({
    isEqual: true,
    tables: [
      { table: 'wallet', rows: 3 },
      { table: 'entry', rows: 12 },
    ],
  })
}

/** Only whoever was seen with its lock is taken for dead without it. */
async function hasLock(db: TestDatabase, projector: ProjectorProcess): Promise<void> {
  const [ready] = await projector.hears('ready')
  await until(
    'it has its lock',
    async () => (await db.query('select from pawl.worker where id = $1 and locks', [ready!.worker])).length === 1,
  )
}

const transaction = (n: number) => [1, 2, 3, 4].map((i) => ({ key: `w${(n + i) % 3}`, data: { amount: n * 10 + i } }))

const points = [
  { probe: 'projections.batch.before', hit: 2 },
  { probe: 'projections.batch.moved', hit: 2 },
  ...[1, 2, 3, 4].map((i) => ({ probe: 'projections.event.handled' as const, hit: 4 + i })),
  { probe: 'projections.batch.handled', hit: 2 },
  { probe: 'projections.batch.committed', hit: 2 },
] as const

test.each(points)('[P1] a projector killed at $probe, time $hit, applies each event once', async ({ probe, hit }) => {
  const db = await createLog(sceneSql)
  const at = { probe, hit, what: 'kill' } as const
  const victim = await ProjectorProcess.holding(db.url, { scene: 'wallets', runner: calmRunner, at })
  const { said } = await standBy(db, 'wallets')
  await append(db, ...transaction(1))
  await caughtUp(db, 'wallets')
  // The same process is killed in its second batch.
  await append(db, ...transaction(2))
  expect(await victim.ended()).toBe('SIGKILL')
  expect(victim.heard('killing')).toEqual([{ event: 'killing', probe }])
  await endLeasesOf(db, victim)
  await append(db, ...transaction(3))
  await caughtUp(db, 'wallets')
  await expectExact(db, 12)
  expect(said).toEqual([])
  await expectRebuilt(db)
})

/** Of each event one job and one event. */
async function expectAnswered(db: TestDatabase, positions: readonly number[]): Promise<void> {
  const jobs = await db.query(
    "select (payload ->> 'position')::integer as position from pawl.job where kind = 'answer' order by 1",
  )
  const events = await db.query("select payload::integer as position from pawl.event where channel = 'out' order by 1")
  const wanted = positions.map((position) => ({ position }))
  expect({ jobs, events }).toEqual({ jobs: wanted, events: wanted })
}

const isAnswered = async (db: TestDatabase, count: number) =>
  (await db.query("select from pawl.event where channel = 'out'")).length >= count

test.each([
  ...points.filter(({ probe }) => probe !== 'projections.event.handled'),
  { probe: 'projections.event.handled', hit: 3 },
  { probe: 'projections.acquired', hit: 1 },
  { probe: 'events.append.sent', hit: 3 },
  { probe: 'jobs.enqueue.sent', hit: 3 },
] as const)('[P9] a reaction killed at $probe acts once per event', async ({ probe, hit }) => {
  const db = await createLog(sceneSql)
  const victim = new ProjectorProcess(db.url, { scene: 'answers', runner: calmRunner, at: { probe, hit, what: 'kill' } })
  if (hit > 1) await victim.hears('cursor.acquired')
  await append(db, { key: 'a' }, { key: 'b' })
  if (hit > 1) await until('the first are answered', () => isAnswered(db, 2))
  // Another one than the first, so that the same process is killed in it.
  await append(db, { key: 'a' }, { key: 'b' })
  expect(await victim.ended()).toBe('SIGKILL')
  await endLeasesOf(db, victim)
  await standBy(db, 'answers')
  await until('all is answered', () => isAnswered(db, 4))
  await caughtUp(db, 'answers')
  const asked = await db.query<{ position: number }>(
    `select (p.first_position + u.n - 1)::integer as position
     from pawl.log_page p
     cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
     join pawl.event e on e.xid = u.xid and e.seq = u.seq
     where e.type = 'Added'
     order by 1`,
  )
  await expectAnswered(
    db,
    asked.map(({ position }) => position),
  )
})

test.each(['projections.fail.before', 'projections.park.before', 'projections.unpark.handled'] as const)(
  '[P9] a reaction killed at %s acts once per event',
  async (probe) => {
    const db = await createLog(sceneSql)
    const victim = new ProjectorProcess(db.url, { scene: 'answers', runner: calmRunner, at: { probe, hit: 1, what: 'kill' } })
    await victim.hears('cursor.acquired')
    await append(db, { key: 'a', data: { bad: true } }, { key: 'b' })
    const { pawl } = await standBy(db, 'answers')
    const mend = async () => {
      await until('it is parked', async () => (await pawl.projections.parked('answers')).items.length === 1)
      await db.query("insert into mail values (1, 'a', '', 1)")
      await pawl.projections.unpark('answers', { reason: 'mended' })
    }
    if (probe === 'projections.unpark.handled') await mend()
    expect(await victim.ended()).toBe('SIGKILL')
    await endLeasesOf(db, victim)
    if (probe !== 'projections.unpark.handled') await mend()
    await until('all is answered', () => isAnswered(db, 2))
    await until('nothing is parked', async () => (await pawl.projections.parked('answers')).items.length === 0)
    await expectAnswered(db, [1, 2])
  },
)

test('[P2] after kill -9 a standby takes over within three seconds', async () => {
  const db = await createLog(sceneSql)
  const victim = await ProjectorProcess.holding(db.url, {
    scene: 'wallets',
    runner: { ...quickRunner, lease: '60s', tuning: { ...quickRunner.tuning, beatMs: 500 } },
  })
  const { runner } = await standBy(db, 'wallets')
  await until('both have been there long enough to believe a free lock', async () => {
    const [row] = await db.query<{ is_old: boolean }>(
      "select count(*) = 2 and min(clock_timestamp() - backend_start) > interval '3 seconds' as is_old from pg_stat_activity where datname = current_database() and application_name like '% keeper'",
    )
    return row!.is_old
  })
  await hasLock(db, victim)
  await append(db, ...transaction(1))
  await caughtUp(db, 'wallets')
  expect(runner.held()).toEqual([])
  const before = performance.now()
  await victim.kill()
  await append(db, ...transaction(2))
  await until('the standby holds it', () => runner.held().length === 1)
  const tookMs = performance.now() - before
  await caughtUp(db, 'wallets')
  await expectExact(db, 8)
  expect(tookMs, `it took ${Math.round(tookMs)} ms`).toBeLessThan(3000)
})

test('[P2] SIGSTOP in a transaction: a standby takes over, the transaction is gone', async () => {
  const db = await createLog(sceneSql)
  const victim = await ProjectorProcess.holding(db.url, { scene: 'wallets' })
  const { runner } = await standBy(db, 'wallets')
  await append(db, ...transaction(1), { key: 'held', data: { amount: 5, hold: true } })
  await victim.hears('holding')
  victim.pause()
  await until('the standby holds it', () => runner.held().length === 1, 60_000)
  await caughtUp(db, 'wallets')
  await expectExact(db, 5)
  victim.resume()
  victim.tell('go')
  await victim.hears('cursor.lost')
  await append(db, ...transaction(2))
  await caughtUp(db, 'wallets')
  await expectExact(db, 9)
})

test('[P2] SIGSTOP between transactions: the next write is refused by its fence', async () => {
  const db = await createLog(sceneSql)
  const victim = await ProjectorProcess.holding(db.url, {
    scene: 'wallets',
    at: { probe: 'projections.batch.before', hit: 2, what: 'stop' },
  })
  const { fence } = await cursorOf(db, 'wallets')
  const { runner } = await standBy(db, 'wallets')
  await append(db, ...transaction(1))
  await caughtUp(db, 'wallets')
  await append(db, ...transaction(2))
  await victim.hears('holding')
  await until('the standby holds it', () => runner.held().length === 1, 60_000)
  await caughtUp(db, 'wallets')
  victim.resume()
  await victim.hears('cursor.refused')
  await until('the evidence is kept', async () => (await db.query('select from pawl.refusal')).length > 0)
  expect(await db.query('select what, subject, fence::text from pawl.refusal')).toEqual([
    { what: 'cursor', subject: 'wallets generation 1 shard 0', fence },
  ])
  expect(Number((await cursorOf(db, 'wallets')).fence)).toBeGreaterThan(Number(fence))
  await expectExact(db, 8)
})

test('[P2] a stopped holder without sessions loses its cursor before its lease ends', async () => {
  const db = await createLog(sceneSql)
  const victim = await ProjectorProcess.holding(db.url, {
    scene: 'wallets',
    runner: { ...quickRunner, lease: '120s' },
    pawl: { databaseUrl: db.url, applicationName: 'victim' },
  })
  const { runner } = await standBy(db, 'wallets')
  await append(db, ...transaction(1), { key: 'held', data: { amount: 5, hold: true } })
  await victim.hears('holding')
  await hasLock(db, victim)
  victim.pause()
  expect(await terminateSessions(db, 'victim')).toBeGreaterThan(4)
  await until('the standby holds it', () => runner.held().length === 1, 30_000)
  await caughtUp(db, 'wallets')
  victim.resume()
  victim.tell('go')
  await victim.hears('cursor.lost')
  await append(db, ...transaction(2))
  await caughtUp(db, 'wallets')
  await expectExact(db, 9)
})

test('[P2] repeated pg_terminate_backend of a living holder loses and doubles nothing', async () => {
  const db = await createLog(sceneSql)
  await ProjectorProcess.holding(db.url, { scene: 'wallets', pawl: { databaseUrl: db.url, applicationName: 'victim' } })
  await standBy(db, 'wallets')
  for (let n = 0; n < 25; n++) {
    await append(db, ...transaction(n))
    // Whatever they are at: reading, in a transaction, in a commit.
    if (n % 2 === 0) await terminateSessions(db, 'victim')
  }
  await caughtUp(db, 'wallets')
  await expectExact(db, 100)
})

test('an event that kills its process is parked after three deaths', {
  timeout: 120_000,
}, async () => {
  const db = await createLog(sceneSql)
  await append(
    db,
    { key: 'a', data: { amount: 1 } },
    { key: 'poison', data: { amount: 2, kill: true } },
    { key: 'b', data: { amount: 3 } },
  )
  // One death takes the whole batch; then event by event, so that the good one before it passes; the third death there is the last.
  for (let deaths = 1; deaths <= 4; deaths++) {
    const victim = new ProjectorProcess(db.url, { scene: 'wallets', runner: calmRunner })
    expect(await victim.ended()).toBe('SIGKILL')
    await endLeasesOf(db, victim)
    expect(await cursorOf(db, 'wallets')).toMatchObject({ position: deaths === 1 ? 0 : 1 })
  }
  const survivor = new ProjectorProcess(db.url, { scene: 'wallets' })
  await survivor.hears('projection.parked')
  await caughtUp(db, 'wallets')
  expect(await db.query('select position::integer from entry order by 1')).toEqual([{ position: 1 }, { position: 3 }])
  expect(await db.query('select key, reason from pawl.parked_key')).toEqual([
    { key: 'poison', reason: 'The process died 3 times while it applied event 2 (Added).' },
  ])
})

test('deaths count against the tried event and no idle projection', {
  timeout: 120_000,
}, async () => {
  const db = await createLog(sceneSql)
  await append(db, { key: 'poison', data: { hold: true, kill: true } })
  for (let deaths = 1; deaths <= 3; deaths++) {
    const victim = new ProjectorProcess(db.url, { scene: 'bystander', runner: calmRunner })
    await victim.hears('holding')
    await caughtUp(db, 'quiet')
    victim.tell('go')
    expect(await victim.ended()).toBe('SIGKILL')
    await endLeasesOf(db, victim)
  }
  await append(db, { key: 'good', type: 'Quiet' })
  const survivor = new ProjectorProcess(db.url, { scene: 'bystander' })
  await survivor.hears('projection.parked')
  for (const name of ['quiet', 'wallets']) await caughtUp(db, name)
  expect(await db.query('select position::integer from mail')).toEqual([{ position: 2 }])
  expect(await db.query('select name, key, reason from pawl.parked_key')).toEqual([
    { name: 'wallets', key: 'poison', reason: 'The process died 3 times while it applied event 1 (Added).' },
  ])
})

test.each([
  ['wallets', 'select position::integer from entry order by 1'],
  // A sink is handed what was under way at a death again, with the same key.
  ['mail', 'select position::integer from (select distinct position, idempotency_key from mail) m order by 1'],
] as const)('a parked event of %s that kills its replay is parked again', { timeout: 120_000 }, async (scene, effects) => {
  const db = await createLog(sceneSql)
  const { pawl, runner } = await standBy(db, scene)
  await pawl.projections.pause(scene, { reason: 'a test' })
  await append(db, { key: 'poison', data: { kill: true } }, { key: 'calm' }, { key: 'good' })
  await until('they have positions', async () => (await db.query('select from pawl.sequencer where position = 3')).length === 1)
  await runner.stop()
  // As if the first two had been parked: the third is the next.
  await db.query("update pawl.cursor_position set position = 2; update pawl.cursor set state = 'running'")
  for (const [key, position] of [
    ['poison', 1],
    ['calm', 2],
  ]) {
    const values = [scene, key]
    await db.query("insert into pawl.parked_key values ('', $1, 1, 0, '', $2, 'parked', 'by hand', null, 1)", values)
    await db.query("insert into pawl.parked_event values ('', $1, 1, 0, '', $2, $3)", [...values, position])
  }
  await pawl.projections.unpark(scene, { reason: 'a test' })
  // The first death makes the next ones careful, and theirs count.
  for (let deaths = 1; deaths <= 4; deaths++) {
    const victim = new ProjectorProcess(db.url, { scene, runner: calmRunner })
    expect(await victim.ended()).toBe('SIGKILL')
    await endLeasesOf(db, victim)
  }
  const survivor = new ProjectorProcess(db.url, { scene })
  await survivor.hears('projection.parked')
  await caughtUp(db, scene)
  const parked = () => db.query('select key, state, reason from pawl.parked_key')
  await until('the other key is free, and this one waits again', async () => {
    const keys = await parked()
    return keys.length === 1 && keys[0]!.state === 'parked'
  })
  expect(await parked()).toEqual([
    { key: 'poison', state: 'parked', reason: 'The replay of event 1 failed: the process died 3 times.' },
  ])
  expect(await db.query(effects)).toEqual([{ position: 2 }, { position: 3 }])
})

test('a killed sink repeats only what was in flight, same key', async () => {
  const db = await createLog(sceneSql)
  const victim = await ProjectorProcess.holding(db.url, { scene: 'mail', runner: calmRunner })
  await append(db, { key: 'a' }, { key: 'slow', data: { hold: true } }, { key: 'b' }, { key: 'c' }, { key: 'slow' })
  await victim.hears('handled', 3)
  // The first of the three may be the last to be finished, and is stored with a later write then.
  await until('what is finished is stored', async () => {
    const { position, done } = await cursorOf(db, 'mail')
    return position === 1 && done === '{[3,5)}'
  })
  await victim.kill()
  await endLeasesOf(db, victim)
  const { said } = await standBy(db, 'mail')
  await caughtUp(db, 'mail')
  expect(said.filter(({ event }) => event === 'handled')).toMatchObject([{ position: 2 }, { position: 5 }])
  const mails = await db.query<{ position: number; keys: number; times: number }>(
    'select position::integer, count(distinct idempotency_key)::integer as keys, count(*)::integer as times from mail group by 1 order by 1',
  )
  expect(mails).toEqual([1, 2, 3, 4, 5].map((position) => ({ position, keys: 1, times: 1 })))
})

test.each(['projections.sink.handled', 'projections.sink.flushed'] as const)(
  'a sink killed at %s repeats at most what was not stored',
  async (probe) => {
    const db = await createLog(sceneSql)
    const at = { probe, hit: 5, what: 'kill' } as const
    const victim = await ProjectorProcess.holding(db.url, { scene: 'mail', runner: calmRunner, at })
    // How many events one store takes is chance, so they come until there were enough stores.
    let appended = 0
    await until(
      'it has killed itself',
      async () => {
        if (victim.signal === null || appended < 10) await append(db, ...transaction(appended++))
        return victim.signal !== null && appended >= 10
      },
      40_000,
    )
    expect(await victim.ended()).toBe('SIGKILL')
    const stored = await cursorOf(db, 'mail')
    await endLeasesOf(db, victim)
    await standBy(db, 'mail')
    await caughtUp(db, 'mail')
    const mails = await db.query<{ key: string; position: number; pid: number }>(
      'select key, position::integer, pid from mail order by at',
    )
    expect(new Set(mails.map(({ position }) => position)).size).toBe(4 * appended)
    const times = new Map<number, number>()
    for (const { position } of mails) times.set(position, (times.get(position) ?? 0) + 1)
    // What was stored when it died is handed over no more; of the rest, each once more.
    const ranges = [...stored.done.matchAll(/\[(\d+),(\d+)\)/g)].map(([, from, to]) => [Number(from), Number(to)] as const)
    const isStored = (position: number) =>
      position <= stored.position || ranges.some(([from, to]) => position >= from && position < to)
    expect([...times].filter(([position, count]) => count > (isStored(position) ? 1 : 2))).toEqual([])
    for (const pid of new Set(mails.map((mail) => mail.pid))) {
      for (const key of new Set(mails.map((mail) => mail.key))) {
        const positions = mails.filter((mail) => mail.pid === pid && mail.key === key).map(({ position }) => position)
        expect(positions).toEqual([...positions].sort((a, b) => a - b))
      }
    }
  },
)
