// The tables of a projection's generations. Readers use the declared name, which is always the live generation's; another generation's
// table has the same name with `_g` and its number. A switch renames both in one transaction, so readers change nothing.

import { PawlError, shown } from '../errors.ts'
import type { ProjectionTable } from './types.ts'

const identifierBytesMax = 63

export interface TableName {
  readonly schema: string | undefined
  readonly table: string
}

export function parseTable(name: string): TableName {
  const parts = name.split('.')
  const [first, second] = parts
  if (parts.length > 2 || parts.some((part) => part.length === 0))
    throw new PawlError('PAWL_CONFIG', `'${name}' is not the name of a table. Use 'balances' or 'app.balances', without quotes.`)
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
  if (!Array.isArray(tables))
    throw new PawlError(
      'PAWL_CONFIG',
      `tables of '${projection}' must be an array of { name, key, columns }, got ${shown(tables)}.`,
    )
  for (const { name, key, columns } of tables) {
    if (typeof name !== 'string' || !Array.isArray(key) || !Array.isArray(columns))
      throw new PawlError('PAWL_CONFIG', `Each of the tables of '${projection}' must have a name and the arrays key and columns.`)
    const { table } = parseTable(name)
    if (Buffer.byteLength(table) > identifierBytesMax - 10)
      throw new PawlError(
        'PAWL_CONFIG',
        `The table name '${table}' of '${projection}' is too long: ${identifierBytesMax - 10} bytes, so that a generation's number fits.`,
      )
    if (key.length === 0 || columns.length === 0)
      throw new PawlError('PAWL_CONFIG', `The table '${name}' of '${projection}' needs its key and the columns to compare.`)
  }
}
