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

/** Under a search path in which no other role has operators; in a transaction, because a pooled session is not ours to set. */
export async function rowsOf<Row>({ client }: Patient, text: string, values: unknown[] = []): Promise<Row[]> {
  await client.query('begin isolation level read committed; set local search_path = pg_catalog, pg_temp')
  try {
    return (await client.query(text, values)).rows as Row[]
  } finally {
    await client.query('rollback')
  }
}

const creatorsSql = `
select n.nspname::text as schema, coalesce(r.rolname::text, 'public') as role
from unnest($1::text[]) with ordinality p(schema, nth)
join pg_namespace n on n.nspname = p.schema
cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
left join pg_roles r on r.oid = a.grantee
where a.privilege_type = 'CREATE'
  and coalesce(not r.rolsuper and r.rolname not in ('pg_database_owner', current_user), true)
  and (n.nspname <> 'pawl' or a.grantee <> n.nspowner)
  and a.grantee <> (select d.datdba from pg_database d where d.datname = current_database())
order by p.nth, 2`

/** Roles that may create in these schemas, apart from superusers, the owner of the database and this role. */
export function creatorsIn(patient: Patient, schemas: readonly string[]): Promise<{ schema: string; role: string }[]> {
  return rowsOf(patient, creatorsSql, [schemas])
}
