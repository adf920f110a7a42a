// What a check finds. A fault always comes with its fix: the SQL to run, the command to give, or what to change.

import type pg from 'pg'

export interface Finding {
  readonly check: string
  readonly state: 'ok' | 'fault' | 'skipped'
  readonly what: string
  readonly fix?: string
}

export interface Patient {
  readonly url: string
  readonly client: pg.Client
  readonly tenant: string | undefined
  readonly longTransactionMs: number
}

export type Check = (patient: Patient) => Promise<Finding[]>

export function ok(check: string, what: string): Finding {
  return { check, state: 'ok', what }
}

export function fault(check: string, what: string, fix: string): Finding {
  return { check, state: 'fault', what, fix }
}

export function skipped(check: string, what: string): Finding {
  return { check, state: 'skipped', what }
}

/** Under a search path in which no other role has operators; in a transaction, because behind a pooler the session is not ours to set. */
export async function rowsOf<Row>({ client }: Patient, text: string, values: unknown[] = []): Promise<Row[]> {
  await client.query('begin; set local search_path = pg_catalog, pg_temp')
  try {
    return (await client.query(text, values)).rows as Row[]
  } finally {
    await client.query('rollback')
  }
}
