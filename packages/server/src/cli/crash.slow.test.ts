// What the death of a `pawl worker` costs: its jobs, their neighbours, and what comes after.

import { fileURLToPath } from 'node:url'
import type { Pawl } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../../pawl/test/support/database.ts'
import { RunningCli } from './test-support/cli-process.ts'

const crashModule = fileURLToPath(new URL('./test-support/crash-module.mjs', import.meta.url))

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

async function startWorker(more: readonly string[] = []): Promise<RunningCli> {
  const worker = await RunningCli.start(['worker', crashModule, '--database-url', db.url, ...more])
  await worker.until('it started', () => /worker \d+ \(pid/.test(worker.stderr))
  return worker
}

const many = async (kind: string, count: number): Promise<string[]> => {
  const { ids } = await pawl.jobs.enqueueMany(
    kind,
    Array.from({ length: count }, () => ({})),
  )
  return ids
}

async function live(kind: string): Promise<number> {
  const [row] = await db.query<{ n: number }>('select count(*)::integer as n from pawl.job where kind = $1', [kind])
  return row!.n
}

test('[J21] one killer among a thousand dies alone, and nothing waits for it', async () => {
  let isOver = false
  const current = new Set<RunningCli>()
  // As a supervisor would: each is started again whenever it ends.
  const supervise = async () => {
    while (!isOver) {
      const worker = await RunningCli.start(['worker', crashModule, '--database-url', db.url])
      current.add(worker)
      await worker.ended()
      current.delete(worker)
    }
  }
  const supervised = Promise.all([supervise(), supervise()])
  await many('quick', 500)
  const [killer] = await many('killer', 1)
  await many('quick', 500)
  const waits: number[] = []
  await until(
    'the killer is dead and the others are done',
    async () => {
      const [id] = await many('fresh', 1)
      const startedMs = performance.now()
      await until('a fresh job is done', async () => (await pawl.jobs.get(id!))?.state === 'done')
      waits.push(performance.now() - startedMs)
      return (await pawl.jobs.get(killer!))?.state === 'dead' && (await live('quick')) === 0
    },
    120_000,
  )
  isOver = true
  for (const worker of current) worker.signal('SIGKILL')
  await supervised
  expect(await pawl.jobs.get(killer!)).toMatchObject({ state: 'dead', crashes: 3 })
  const crashes = await db.query<{ crashes: number }>("select distinct crashes from pawl.job_history where kind = 'quick'")
  expect(Math.max(...crashes.map((row) => row.crashes))).toBeLessThanOrEqual(2)
  expect(await db.query("select outcome, count(*)::integer as n from pawl.job_history where kind = 'quick' group by 1")).toEqual([
    { outcome: 'done', n: 1000 },
  ])
  // Two of its three deaths took a worker with it, the last one only the process that ran it alone.
  const alone = await db.query<{ name: string }>(
    'select p.name from pawl.job_attempt a join pawl.worker_process p on p.id = a.holder where a.job_id = $1 order by a.attempt',
    [killer],
  )
  expect(alone.map(({ name }) => name.endsWith('-alone'))).toEqual([false, false, true])
  // All but those that a killed process held itself, which wait until another takes over.
  waits.sort((a, b) => a - b)
  expect(waits[Math.floor(waits.length * 0.9)]).toBeLessThan(1000)
}, 180_000)

test('[J3] six jobs of a killed process start again at once beside fresh ones', async () => {
  const victim = await startWorker(['--concurrency', '6'])
  const ids = await many('three', 6)
  await until('they run', async () => {
    const [row] = await db.query<{ n: number }>("select count(*)::integer as n from pawl.job where state = 'running'")
    return row!.n === 6
  })
  await startWorker(['--concurrency', '20'])
  victim.signal('SIGKILL')
  await until('another has taken them', async () => {
    const [row] = await db.query<{ n: number }>(
      "select count(*)::integer as n from pawl.job where kind = 'three' and state = 'running' and crashes = 1",
    )
    return row!.n === 6
  })
  const [fresh] = await many('fresh', 1)
  await until('a fresh job is done beside them', async () => (await pawl.jobs.get(fresh!))?.state === 'done')
  expect(await live('three')).toBe(6)
  await until('all are done', async () => (await live('three')) === 0)
  for (const id of ids) expect(await pawl.jobs.get(id)).toMatchObject({ state: 'done', crashes: 1 })
}, 60_000)

test('[J3] an uncaught error gives back what had not started, in one line', async () => {
  const worker = await startWorker(['--concurrency', '20'])
  // So that it fetches ahead.
  await many('quick', 300)
  await until('they are done', async () => (await live('quick')) === 0)
  const [thrower] = await many('throws', 1)
  await until('it runs', async () => (await pawl.jobs.get(thrower!))?.state === 'running')
  await many('quick', 1000)
  const { code, stderr } = await worker.ended()
  expect(code).toBe(1)
  expect(stderr).toMatch(/^pawl: an error that nobody caught ends this worker process \(pid \d+\): Error: nobody catches this/m)
  expect(await db.query('select close_reason from pawl.worker')).toEqual([{ close_reason: 'uncaught error' }])
  const held = await db.query<{ n: number }>("select count(*)::integer as n from pawl.job where state = 'running'")
  // What ran is held until a rescue; what waited in its buffer is not.
  expect(held[0]!.n).toBeLessThanOrEqual(20)
  expect(await pawl.jobs.get(thrower!)).toMatchObject({ state: 'running', crashes: 0 })
}, 60_000)

test('[J32] payloads of 900 kB by the thousand pass through a small heap', async () => {
  for (let hundreds = 0; hundreds < 10; hundreds++) {
    await db.query(
      "select count(pawl.enqueue('fresh', jsonb_build_object('x', repeat('abcdefghi ', 90000)))) from generate_series(1, 100)",
    )
  }
  const worker = await RunningCli.start(['worker', crashModule, '--database-url', db.url], {
    env: { NODE_OPTIONS: '--max-old-space-size=512' },
  })
  await until('all are done', async () => worker.child.exitCode !== null || (await live('fresh')) === 0, 280_000)
  expect(worker.child.exitCode).toBeNull()
  expect(await db.query('select attempt, crashes, count(*)::integer as n from pawl.job_history group by 1, 2')).toEqual([
    { attempt: 1, crashes: 0, n: 1000 },
  ])
}, 300_000)
