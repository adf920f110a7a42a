import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../packages/pawl/test/support/database.ts'
import { canaryNamed } from '../scenarios.ts'
import { explore, scheduleCount } from './explore.ts'
import { productStatements, type Statements, setupSql } from './stage.ts'
import { holdersInTransactions, holdersWithSettle, overlappingSets, type Suite, slowHandler } from './suites.ts'

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
  await db.query(setupSql)
})
afterAll(() => db.drop())

const testMs = 300_000

/** A full run plays every order; `npm test` every eighth, which ones changes with the statements. */
const stride = process.env.PAWL_FULL === undefined ? 8 : 1

/** None of the orders is bad. */
async function everyOrder<State>(suite: Suite<State>): Promise<Awaited<ReturnType<typeof explore>>> {
  const explored = await explore(suite, { url: db.url, sql: productStatements, stride })
  expect(explored.bad).toEqual([])
  expect(explored.deadlocks).toBe(0)
  expect(explored.schedules).toBe(Math.ceil(scheduleCount(suite) / stride))
  return explored
}

test('[K11] two holders and one end of lease over claim, effect and completion: no order is bad', {
  timeout: testMs,
}, async () => {
  await everyOrder(holdersInTransactions)
})

test('[K11] two holders, one end of lease and a second rescuer over claim and settle: no order is bad', {
  timeout: testMs,
}, async () => {
  await everyOrder(holdersWithSettle)
})

test('[K11] renewal, cancel, rescue and settle of overlapping sets: no order is bad, none deadlocks', {
  timeout: testMs,
}, async () => {
  const { waited } = await everyOrder(overlappingSets)
  // Orders in which somebody waits are the interesting ones: without them this would prove nothing.
  expect(waited).toBeGreaterThan(0)
})

test('[K11] no lease is lost behind a transaction that guards its job for longer than a lease', { timeout: testMs }, async () => {
  await everyOrder(slowHandler)
})

test('[K11] the same orders without the fence have bad ones', { timeout: testMs }, async () => {
  const { statements, functions } = canaryNamed('no-fence').canary
  const unfenced: Statements = {
    ...productStatements,
    settle: {
      ...productStatements.settle,
      name: 'unfenced_settle',
      text: statements!.settle!(productStatements.settle.text, ''),
    },
  }
  const settled = await explore(holdersWithSettle, { url: db.url, sql: unfenced, badMax: 3 })
  expect(settled.bad.length).toBe(3)

  const [original] = await db.query<{ definition: string }>(
    "select pg_get_functiondef(p.oid) as definition from pg_proc p where p.proname = 'complete_job' and p.pronamespace = 'pawl'::regnamespace",
  )
  await db.query(functions!.complete_job!(original!.definition))
  try {
    const completed = await explore(holdersInTransactions, { url: db.url, sql: productStatements, badMax: 3 })
    expect(completed.bad.length).toBe(3)
  } finally {
    await db.query(original!.definition)
  }
})
