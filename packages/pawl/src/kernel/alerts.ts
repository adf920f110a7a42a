// What a person should look at.

import { type Pool, unavailable } from '../db/driver.ts'
import { bind, statement } from '../db/statement.ts'

const openStatement = statement(import.meta.url, 'open-alerts')
export const resolveAlert = statement(import.meta.url, 'resolve-alert')

export interface Alert {
  readonly tenant: string
  readonly code: string
  readonly subject: string
  readonly message: string
  readonly count: number
  readonly firstAt: Date
  readonly lastAt: Date
}

/** '*': of all tenants. */
export async function listAlerts(pool: Pool, tenant: string): Promise<Alert[]> {
  const listed = pool.query<{
    tenant: string
    code: string
    subject: string
    message: string
    count: string
    first_at: Date
    last_at: Date
  }>(openStatement.text, bind(openStatement, { tenant: tenant === '*' ? null : tenant, limit: 500 }) as unknown[])
  const { rows } = await listed.catch((error: unknown) => {
    throw unavailable(error)
  })
  return rows.map((row) => ({
    tenant: row.tenant,
    code: row.code,
    subject: row.subject,
    message: row.message,
    count: Number(row.count),
    firstAt: row.first_at,
    lastAt: row.last_at,
  }))
}
