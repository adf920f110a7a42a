// What a person should look at.

import { type Pool, unavailable } from '../db/driver.ts'
import { bind, statement } from '../db/statement.ts'

const listStatement = statement(import.meta.url, 'list-alerts')

export interface Alert {
  readonly code: string
  readonly subject: string
  readonly message: string
  readonly count: number
  readonly firstAt: Date
  readonly lastAt: Date
}

export async function listAlerts(pool: Pool, tenant: string): Promise<Alert[]> {
  const listed = pool.query<{
    code: string
    subject: string
    message: string
    count: string
    first_at: Date
    last_at: Date
  }>(listStatement.text, bind(listStatement, { tenant, limit: 500 }) as unknown[])
  const { rows } = await listed.catch((error: unknown) => {
    throw unavailable(error)
  })
  return rows.map((row) => ({
    code: row.code,
    subject: row.subject,
    message: row.message,
    count: Number(row.count),
    firstAt: row.first_at,
    lastAt: row.last_at,
  }))
}
