// The installed schema as a value, and the one that this release was written for: schema.json, read once from a freshly migrated database.

import { readText } from './files.ts'
import { begin } from './packet.ts'
import { statement } from './statement.ts'

export interface ColumnShape {
  readonly type: string
  readonly collation: string | null
  readonly isNotNull: boolean
  readonly default: string | null
  /** 'a': generated always as identity; 'd': by default. */
  readonly identity: string | null
}

type Definitions = Readonly<Record<string, string>>

export interface TableShape {
  readonly partitionBy: string | null
  readonly options: Definitions
  readonly columns: Readonly<Record<string, ColumnShape>>
  readonly constraints: Definitions
  readonly indexes: Definitions
  readonly triggers: Definitions
}

export interface SchemaShape {
  readonly tables: Readonly<Record<string, TableShape>>
  readonly functions: Definitions
  readonly sequences: Definitions
}

const schemaStatement = statement(import.meta.url, 'schema')

export function releasedSchema(): SchemaShape {
  return JSON.parse(readText(new URL('../../schema.json', import.meta.url))) as SchemaShape
}

/** A client or pool of pg, inside no transaction. */
export interface SchemaClient {
  query(text: string): Promise<unknown>
}

export async function readSchema(client: SchemaClient): Promise<SchemaShape> {
  // One simple query, so that nothing else on the connection comes between; names are qualified unless search_path finds them.
  const answers = await client.query(`${begin} read only; set local search_path to pg_catalog; ${schemaStatement.text}; commit`)
  return (answers as { rows: { schema: SchemaShape }[] }[])[2]!.rows[0]!.schema
}

/** The text of schema.json. jsonb has sorted the names, so the same schema always gives the same text. */
export function schemaText(schema: SchemaShape): string {
  return `${JSON.stringify(schema, null, 2)}\n`
}
