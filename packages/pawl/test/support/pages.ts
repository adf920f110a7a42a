// How many pages a statement touches, as the server counts them: what a cost is compared by, because time depends on who else is at work.

import type { Connection } from '../../src/db/driver.ts'
import type { Statement, Values } from '../../src/db/statement.ts'

/** Runs the statement, for good, and gives its pages. */
export async function pagesOf(connection: Pick<Connection, 'run'>, sent: Statement, values: Values = {}): Promise<number> {
  const text = `explain (analyze, buffers, timing off, format json) ${sent.text}`
  const explained: Statement = { ...sent, preparedName: '', text }
  const [row] = await connection.run<{ 'QUERY PLAN': [{ Plan: Record<string, number> }] }>(explained, values)
  const plan = row!['QUERY PLAN'][0].Plan
  return plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!
}
