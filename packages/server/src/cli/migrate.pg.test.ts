import { readMigrations } from 'pawl/admin'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../../pawl/test/support/database.ts'
import { pawl as cli, pawlJson } from './test-support/cli.ts'

const names = readMigrations().map(({ name }) => name)

async function emptyDatabase(): Promise<TestDatabase> {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  return db
}

async function hasSchema(db: TestDatabase): Promise<boolean> {
  return (await db.query("select from pg_namespace where nspname = 'pawl'")).length > 0
}

test('migrate applies what is missing; the second time nothing is missing', async () => {
  const db = await emptyDatabase()
  const on = ['--database-url', db.url]
  expect(await pawlJson(['migrate', '--dry-run', ...on])).toEqual({ missing: names, applied: [] })
  expect(await hasSchema(db)).toBe(false)
  expect(await pawlJson(['migrate', ...on])).toEqual({ applied: names, alreadyThere: [] })
  expect(await pawlJson(['migrate', ...on])).toEqual({ applied: [], alreadyThere: names })
  expect(await pawlJson(['migrate', '--dry-run', ...on])).toEqual({ missing: [], applied: names })
  const shown = await cli(['migrate', ...on])
  expect(shown.stdout).toMatch(/^migration +state\n0001-kernel +already there\n/)
  expect(shown.stderr).toBe('The schema was already up to date.\n')
})

test('--sql needs no database and prints a schema that this release accepts', async () => {
  const { code, stdout } = await cli(['migrate', '--sql'])
  expect(code).toBe(0)
  const db = await emptyDatabase()
  await db.query(stdout)
  expect(await pawlJson(['migrate', '--dry-run', '--database-url', db.url])).toEqual({ missing: [], applied: names })
  const nothing = await cli(['migrate', '--sql', '--database-url', db.url])
  expect(nothing).toMatchObject({ code: 0, stdout: expect.stringMatching(/^-- No migration is missing in postgres.*\.\n$/) })
  expect(nothing.stdout).not.toContain(new URL(db.url).password || 'no password')
  await db.query(nothing.stdout)
})

test('a role that may not create the schema gets the fix', async () => {
  const db = await emptyDatabase()
  const role = `limited_${db.name}`
  await db.query(`create role ${role} login password 'limited'`)
  onTestFinished(async () => {
    await db.query(`drop role if exists ${role}`)
  })
  const url = new URL(db.url)
  url.username = role
  url.password = 'limited'
  const { code, stderr } = await cli(['migrate', '--database-url', url.href])
  expect(code).toBe(6)
  expect(stderr).toContain('pawl migrate --sql')
  expect(await hasSchema(db)).toBe(false)
})

test('a role that may not migrate is told to use --sql', async () => {
  const db = await emptyDatabase()
  const role = `weak_${db.name}`
  await db.query(`create role ${role} login password 'weak'`)
  onTestFinished(async () => {
    await db.query(`drop role ${role}`)
  })
  const url = new URL(db.url)
  url.username = role
  url.password = 'weak'
  const { code, stderr } = await cli(['migrate', '--database-url', url.href])
  expect(code).toBe(6)
  expect(stderr).toMatch(/^next +pawl migrate --sql > pawl\.sql, and run that file as a role/m)
})
