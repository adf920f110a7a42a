// What a person should look at.

import type { Db } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { read } from './retry.ts'

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

interface AlertRow {
  readonly tenant: string
  readonly code: string
  readonly subject: string
  readonly message: string
  readonly count: string
  readonly first_at: Date
  readonly last_at: Date
}

/** '*': of all tenants. */
export async function listAlerts(db: Db, tenant: string): Promise<Alert[]> {
  const rows = await read<AlertRow>(db, openStatement, { tenant: tenant === '*' ? null : tenant, limit: 500 })
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
