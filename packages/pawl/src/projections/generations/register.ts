// What must be true before a runner works: each definition has its row, and agrees with what the database knows of it.

import type { Db } from '../../db/db.ts'
import type { Connection, DatabaseOptions } from '../../db/driver.ts'
import { type Parameter, statement, textsLiteral } from '../../db/statement.ts'
import { PawlError } from '../../errors.ts'
import { logBounds } from '../cursor.ts'
import { type Defined, idOf } from '../definition.ts'
import { qualifyTables, tableOf } from './tables.ts'

/** sql/ of projections: one folder for all statements on its tables. */
const projections = new URL('../', import.meta.url).href

const registerStatement = statement(projections, 'register')
const holdStatement = statement(projections, 'hold-projections')
const readStatement = statement(projections, 'read-projection')
const missingColumnsStatement = statement(projections, 'missing-columns')
const configureStatement = statement(projections, 'configure')

export interface KnownGeneration {
  readonly kind: string
  readonly live_generation: number
  readonly generation: number | null
  readonly shards: number | null
  readonly channel: string | null
  readonly position: string | null
}

export async function readProjection(
  connection: Db,
  { tenant, name }: { tenant: string; name: string },
): Promise<KnownGeneration[]> {
  return connection.run<KnownGeneration>(readStatement, { tenant, name })
}

/** Of several generations that are new to the database the highest is the live one: there is nothing to compare it with. */
export async function register(
  connection: Connection,
  database: DatabaseOptions,
  definitions: readonly Defined[],
): Promise<void> {
  for (const definition of [...definitions].sort((a, b) => b.generation - a.generation)) {
    await assertTablesExist(connection, definition, await qualifyTables(database, definition))
    let known = await readProjection(connection, definition)
    if (known.length === 0) {
      await connection.run(registerStatement, { ...rowOf(definition), position: await startOf(connection, definition) })
      known = await readProjection(connection, definition)
    }
    assertAgrees(definition, known)
    await connection.run(configureStatement, rowOf(definition))
  }
}

/** What the rows of a generation have of its definition. */
export function rowOf(definition: Defined): Readonly<Record<string, Parameter>> {
  const { kind, shards, channel, maxLag } = definition
  return { ...idOf(definition), kind, shards, channel, max_lag_ms: maxLag ?? null }
}

/** Creates again what was forgotten just before this incarnation was opened. From then on `forget` sees the incarnation and refuses. */
export async function registerForgotten(
  connection: Connection,
  database: DatabaseOptions,
  definitions: readonly Defined[],
): Promise<void> {
  const known = await connection.run<{ tenant: string; name: string }>(holdStatement, {
    tenants: textsLiteral(definitions.map(({ tenant }) => tenant)),
    names: textsLiteral(definitions.map(({ name }) => name)),
  })
  const isKnown = (each: Defined) => known.some(({ tenant, name }) => tenant === each.tenant && name === each.name)
  await register(
    connection,
    database,
    definitions.filter((each) => !isKnown(each)),
  )
}

/** A rebuild makes its tables like these, and a switch renames them; finding out there would be late. */
async function assertTablesExist(connection: Connection, definition: Defined, qualified: Defined): Promise<void> {
  const { name: projection, generation, tables } = definition
  const columns = tables.flatMap(({ name, key, columns }, index) => {
    const quoted = tableOf(qualified.tables[index]!.name, generation, true)
    return [...key, ...columns].map((column) => ({ name, quoted, column }))
  })
  if (columns.length === 0) return
  const [missing] = await connection.run<{ name: string; column_name: string | null }>(missingColumnsStatement, {
    names: textsLiteral(columns.map(({ name }) => name)),
    quoted: textsLiteral(columns.map(({ quoted }) => quoted)),
    columns: textsLiteral(columns.map(({ column }) => column)),
  })
  if (missing === undefined) return
  const what = missing.column_name === null ? '' : `the column '${missing.column_name}' of `
  throw new PawlError(
    'PAWL_CONFIG',
    `'${projection}' declares ${what}the table '${missing.name}', which does not exist in the database. Create it before the worker starts, or correct the declaration.`,
  )
}

async function startOf(connection: Connection, { name, from }: Defined): Promise<number> {
  const { before, head } = await logBounds(connection)
  if (from === 'now') return head
  if (from === 'start' && before > 0 && head > before)
    throw new PawlError(
      'PAWL_CONFIG',
      `'${name}' starts at the first event, but events up to position ${before} have been removed. Define it with from: 'oldest' or from: 'now'.`,
    )
  return before
}

function assertAgrees(definition: Defined, known: readonly KnownGeneration[]): void {
  const { name, generation, kind, shards, channel } = definition
  const [first] = known
  if (first !== undefined && first.kind !== kind)
    throw new PawlError('PAWL_CONFIG', `'${name}' is a ${first.kind} in the database and a ${kind} here. Use another name.`)
  const mine = known.find((each) => each.generation === generation)
  if (mine === undefined) return
  if (mine.shards !== shards)
    throw new PawlError(
      'PAWL_CONFIG',
      `'${name}' has ${mine.shards} shard(s) in the database and ${shards} here. The number is fixed once it runs; use ${mine.shards}, or another name.`,
    )
  if (mine.channel !== channel)
    throw new PawlError(
      'PAWL_CONFIG',
      `'${name}' reads ${mine.channel === null ? 'all channels' : `channel '${mine.channel}'`} in the database and ${channel === null ? 'all' : `'${channel}'`} here. Raise its generation and rebuild, or use another name.`,
    )
}
