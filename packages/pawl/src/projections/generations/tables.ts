// The tables of a projection's generations. Readers use the declared name, which is always the live generation's; another generation's
// table has the same name with `_g` and its number. A switch renames both in one transaction, so readers change nothing.

import type { Db } from '../../db/db.ts'
import { createPool, type DatabaseOptions } from '../../db/driver.ts'
import { statement } from '../../db/statement.ts'
import { PawlError } from '../../errors.ts'
import type { Defined } from '../definition.ts'
import type { Comparison, ProjectionTable, TableComparison } from '../types.ts'

/** sql/ of projections: one folder for all statements on its tables. */
const projections = new URL('../', import.meta.url).href

const schemaStatement = statement(projections, 'table-schema')

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

// ---- comparing

/** Two hashes of 64 bits, of the kind that takes equal values for equal: the text of a numeric has its scale. */
const hashOf = (columns: string) =>
  `array[jsonb_hash_extended(jsonb_build_array(${columns}), 0), jsonb_hash_extended(jsonb_build_array(${columns}), 1)]`

/** Not in sql/: its tables and columns are the user's. */
const shape = (names: { live: string; other: string; key: string; columns: string }) => `
with live as materialized (
  select jsonb_build_array(${names.key}) as k, ${hashOf(names.columns)} as h
  from ${names.live} t
),
other as materialized (
  select jsonb_build_array(${names.key}) as k, ${hashOf(names.columns)} as h
  from ${names.other} t
),
differing as materialized (
  select coalesce(l.k, o.k) as k
  from live l
  full join other o on o.k = l.k
  where l.h is distinct from o.h
)
select (select count(*) from live) as rows, (select count(*) from other) as other_rows, (select count(*) from differing) as differing,
  array(select d.k::text from differing d order by d.k limit $1::integer) as sample`

const sampleMax = 20

/** Compares the rows of two generations by a hash over the declared columns, by value: 10.50 is 10.5. Their cursors are locked, at one position. */
export async function compareTables(runs: Db, definition: Defined): Promise<Comparison> {
  const tables: TableComparison[] = []
  for (const { name, key, columns } of definition.tables) {
    const list = (names: readonly string[]) => names.map((each) => `t.${quoteIdentifier(each)}`).join(', ')
    const text = shape({
      live: tableOf(name, definition.generation, true),
      other: tableOf(name, definition.generation, false),
      key: list(key),
      columns: list(columns),
    })
    const [row] = await runs.run<{ rows: string; other_rows: string; differing: string; sample: string[] }>(
      { name: 'compare', preparedName: '', text, parameters: ['sample'], path: 'own' },
      { sample: sampleMax },
    )
    tables.push({
      table: name,
      rows: Number(row!.rows),
      otherRows: Number(row!.other_rows),
      differing: Number(row!.differing),
      sample: row!.sample,
    })
  }
  return { isEqual: tables.every(({ differing }) => differing === 0), tables }
}
