import { codeOf } from '../errors.ts'
import { withClient } from './probe.ts'

/** Creates the database if it is missing. */
export async function ensureDatabase({
  port,
  password,
  database,
}: {
  port: number
  password: string
  database: string
}): Promise<void> {
  await withClient({ port, password, database: 'postgres' }, async (client) => {
    const { rows } = await client.query('select 1 from pg_catalog.pg_database where datname = $1::text', [database])
    if (rows.length > 0) return
    await client.query(`create database ${client.escapeIdentifier(database)}`).catch((error: unknown) => {
      // Another connection has just created it.
      if (codeOf(error) !== '42P04' && codeOf(error) !== '23505') throw error
    })
  })
}
