// The tables of a projection's generations. Readers use the declared name, which is always the live generation's; another generation's
// table has the same name with `_g` and its number. A switch renames both in one transaction, so readers change nothing.

import { createPool, type DatabaseOptions } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { ProjectionTable } from './types.ts'

const schemaStatement = statement(import.meta.url, 'table-schema')

const identifierBytesMax = 63

export interface TableName {
  readonly schema: string | undefined
  readonly table: string
}

export function parseTable(name: string): TableName {
  const parts = name.split('.')
  const [first, second] = parts
  if (parts.length > 2 || parts.some((part) => part.length === 0))
    throw new PawlError('PAWL_CONFIG', `'${name}' is not a table name. Use 'balances' or 'app.balances', without quotes.`)
  return second === undefined ? { schema: undefined, table: first! } : { schema: first, table: second }
}

export function quoteIdentifier(name: string): string {
  return `"${name.replaceAll('"', '""')}"`
}

/** The name of a generation's table, without its schema. */
export function generationTable(table: string, generation: number): string {
  return `${table}_g${generation}`
}

/** The quoted name under which a generation's table is found. */
export function tableOf(name: string, generation: number, isLive: boolean): string {
  const { schema, table } = parseTable(name)
  const found = quoteIdentifier(isLive ? table : generationTable(table, generation))
  return schema === undefined ? found : `${quoteIdentifier(schema)}.${found}`
}

export function assertTables(projection: string, tables: readonly ProjectionTable[]): void {
  for (const { name, key, columns } of tables) {
    const { table } = parseTable(name)
    if (Buffer.byteLength(table) > identifierBytesMax - 10)
      throw new PawlError(
        'PAWL_CONFIG',
        `The table name '${table}' of '${projection}' is too long: it may have ${identifierBytesMax - 10} bytes, to leave room for the number of a generation.`,
      )
    if (key.length === 0 || columns.length === 0)
      throw new PawlError(
        'PAWL_CONFIG',
        `The table '${name}' of '${projection}' needs at least one column in key and one in columns.`,
      )
  }
}

/** The same tables with their schema in front. What is done to generations runs under our own search path, which does not find the user's tables. */
export async function qualifyTables<Definition extends { readonly tables: readonly ProjectionTable[] }>(
  database: DatabaseOptions,
  definition: Definition,
): Promise<Definition> {
  if (definition.tables.every(({ name }) => parseTable(name).schema !== undefined)) return definition
  const pool = createPool(database, 'tables', 1, 'users')
  try {
    const tables: ProjectionTable[] = []
    for (const table of definition.tables) {
      const { schema, table: name } = parseTable(table.name)
      const [row] =
        schema === undefined ? await pool.run<{ schema: string }>(schemaStatement, { table: quoteIdentifier(name) }) : []
      const found = schema ?? row?.schema
      tables.push(found === undefined ? table : { ...table, name: `${found}.${name}` })
    }
    return { ...definition, tables }
  } finally {
    await pool.end()
  }
}
