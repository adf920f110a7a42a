// How many pages a statement touches, as the server counts them: what a cost is compared by, because time depends on who else is at work.

import type { Connection } from '../../src/db/driver.ts'
import { bind, type Parameter, type Statement } from '../../src/db/statement.ts'

/** Runs the statement, for good, and gives its pages. */
export async function pagesOf(
  connection: Pick<Connection, 'query'>,
  sent: Statement,
  values: Readonly<Record<string, Parameter>>,
): Promise<number> {
  return pagesOfText(connection, sent.text, bind(sent, values) as unknown[])
}

export async function pagesOfText(connection: Pick<Connection, 'query'>, text: string, values: unknown[] = []): Promise<number> {
  const [row] = await connection.query<{ 'QUERY PLAN': [{ Plan: Record<string, number> }] }>(
    `explain (analyze, buffers, timing off, format json) ${text}`,
    values,
  )
  const plan = row!['QUERY PLAN'][0].Plan
  return plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!
}
