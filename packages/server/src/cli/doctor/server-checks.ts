// The server: its release, the settings that durability rests on, its clock, its notifications, and who holds old snapshots.

import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { oneLine, shortDuration } from '../terminal.ts'
import { type Check, creatorsIn, type Finding, fault, ok, rowsOf } from './check.ts'

export function checkNode(version: string = process.versions.node): Finding {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > 20 || (major === 20 && minor >= 19)) return ok('node', version)
  return fault('node', `Node ${version} is older than Pawl supports.`, 'install Node 20.19 or newer')
}

export const checkPostgres: Check = async (patient) => {
  const [row] = await rowsOf<{ number: number; version: string; is_standby: boolean; is_read_only: boolean }>(
    patient,
    `select current_setting('server_version_num')::integer as number, current_setting('server_version') as version,
       pg_is_in_recovery() as is_standby, current_setting('default_transaction_read_only')::boolean as is_read_only`,
  )
  const { number, version, is_standby, is_read_only } = row!
  if (number < 150_000)
    return [
      fault('postgresql', `PostgreSQL ${version} is older than Pawl supports.`, 'upgrade the server to PostgreSQL 15 or newer'),
    ]
  if (is_standby)
    return [
      fault('postgresql', `This server (${version}) is a standby: nothing can be written here.`, 'point the URL at the primary'),
    ]
  if (is_read_only) {
    return [
      fault(
        'postgresql',
        'Transactions are read-only by default here.',
        'alter database <name> reset default_transaction_read_only, or the same for the role',
      ),
    ]
  }
  return [ok('postgresql', version)]
}

const settings = [
  {
    name: 'fsync',
    isBad: (value: string) => value === 'off',
    why: 'a server crash can lose or corrupt committed data',
  },
  { name: 'full_page_writes', isBad: (value: string) => value === 'off', why: 'a server crash can leave torn pages' },
  {
    name: 'synchronous_commit',
    isBad: (value: string) => value === 'off',
    why: 'a server crash can lose your latest commits and the jobs enqueued in them',
  },
] as const

export const checkSettings: Check = async (patient) => {
  const rows = await rowsOf<{ name: string; setting: string; source: string }>(
    patient,
    'select name, setting, source from pg_settings where name = any ($1)',
    [settings.map(({ name }) => name)],
  )
  return settings.map(({ name, isBad, why }) => {
    const row = rows.find((found) => found.name === name)!
    return isBad(row.setting) ? fault(name, `${row.setting}: ${why}.`, resetSql(name, row.source)) : ok(name, row.setting)
  })
}

/** Where a setting is set decides how it is undone. */
function resetSql(name: string, source: string): string {
  if (source === 'database') return `alter database <name> reset ${name}; then reconnect`
  if (source === 'user' || source === 'database user')
    return `alter role <name> reset ${name} (in database <name>, if it was set there); then reconnect`
  if (source === 'command line') return `start the server without -c ${name}=off`
  return `alter system set ${name} = on; select pg_reload_conf();`
}

/** A function of another role in a schema of the path runs with the caller's rights. Our own statements do not use the path; an application's do. */
export const checkPath: Check = async (patient) => {
  const { rows } = await patient.client.query<{ schemas: string[]; role: string; path: string }>(
    `select pg_catalog.current_schemas(false)::pg_catalog.text[] as schemas, current_user::pg_catalog.text as role,
       pg_catalog.current_setting('search_path') as path`,
  )
  const { schemas, role, path } = rows[0]!
  if (schemas.includes('pawl') || (role === 'pawl' && path.includes('$user'))) return [pawlInPath(role, path)]
  const creators = await creatorsIn(patient, schemas)
  if (creators.length === 0) return [ok('search path', schemas.join(', ') || 'empty')]
  return creators.map(({ schema, role }) =>
    fault(
      'search path',
      `${role === 'public' ? 'Every role' : `The role ${role}`} may create objects in schema ${schema}, which is in the search path: its operators and functions would run with the privileges of your handlers.`,
      `revoke create on schema ${pg.escapeIdentifier(schema)} from ${role === 'public' ? role : pg.escapeIdentifier(role)}; or take the schema out of the role's search_path`,
    ),
  )
}

/** Also before the first migration: a role of that name has it in its path as soon as the schema is there. */
function pawlInPath(role: string, path: string): Finding {
  return fault(
    'search path',
    `Schema pawl is in the search path of role ${role} (${path}): objects that an application creates without a schema name may end up among Pawl's tables.`,
    `alter role ${pg.escapeIdentifier(role)} set search_path = public; then reconnect, and move objects that are in schema pawl by mistake (the drift check lists them): alter table pawl.<name> set schema public;`,
  )
}

const clockMaxMs = 1000

export const checkClock: Check = async ({ client }) => {
  // The best of a few: whatever a round trip took is doubt about the offset.
  let best = { offsetMs: 0, doubtMs: Number.POSITIVE_INFINITY }
  for (let tried = 0; tried < 5; tried++) {
    const startedMs = performance.now()
    const before = Date.now()
    const { rows } = await client.query<{ ms: number }>(
      'select extract(epoch from pg_catalog.clock_timestamp())::float8 * 1000::float8 as ms',
    )
    const doubtMs = (performance.now() - startedMs) / 2
    if (doubtMs < best.doubtMs) best = { offsetMs: rows[0]!.ms - (before + doubtMs), doubtMs }
  }
  const { offsetMs, doubtMs } = best
  const side = offsetMs > 0 ? 'ahead of' : 'behind'
  const text = `the database is ${shortDuration(offsetMs)} ${side} this process (within ${Math.ceil(doubtMs)}ms)`
  if (Math.abs(offsetMs) - doubtMs <= clockMaxMs) return [ok('clock', text)]
  return [
    fault(
      'clock',
      `${text}. Leases are not affected, but a runAt computed on this host is off by that much, and so are its logs.`,
      'synchronise both hosts with NTP (timedatectl set-ntp true); until then pass delay instead of runAt',
    ),
  ]
}

const notifyMs = 3000

export const checkListen: Check = async ({ client, url }) => {
  const channel = `pawl_doctor_${randomBytes(6).toString('hex')}`
  const other = new pg.Client({ connectionString: url, application_name: 'pawl doctor', connectionTimeoutMillis: 5000 })
  other.on('error', () => undefined)
  await other.connect()
  try {
    const heard = new Promise<boolean>((resolve) => client.once('notification', () => resolve(true)))
    await client.query(`listen ${channel}`)
    await other.query('select pg_notify($1, $2)', [channel, ''])
    const timer = new AbortController()
    const isHeard = await Promise.race([heard, sleep(notifyMs, false, { signal: timer.signal }).catch(() => false)])
    timer.abort()
    await client.query('unlisten *')
    if (isHeard) return [ok('listen', 'notifications arrive')]
    return [
      fault(
        'listen',
        'A notification did not arrive: the URL may be of a pooler in transaction mode. Workers would only poll.',
        "createPawl({ pooler: 'transaction', directUrl: 'the URL without the pooler' }), or --pooler transaction --direct-url <url> on the command line",
      ),
    ]
  } finally {
    await other.end()
  }
}

interface LongRow {
  readonly what: string
  readonly age_ms: number
  readonly detail: string
  readonly fix: string
}

const longSql = `
select format('process %s of %s (%s)', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name')) as what,
  (extract(epoch from clock_timestamp() - a.xact_start) * 1000)::float8 as age_ms,
  a.state || ': ' || left(a.query, 80) as detail,
  format('select pg_terminate_backend(%s);', a.pid) as fix
from pg_stat_activity a
where a.datname = current_database()
  and a.backend_type = 'client backend'
  and a.pid <> pg_backend_pid()
  and a.xact_start < clock_timestamp() - $1::float8 * interval '1 millisecond'
union all
select format('prepared transaction %s of %s', p.gid, p.owner), (extract(epoch from clock_timestamp() - p.prepared) * 1000)::float8,
  'waiting for commit prepared', format('rollback prepared %L; or commit prepared %L;', p.gid, p.gid)
from pg_prepared_xacts p
where p.database = current_database()
  and p.prepared < clock_timestamp() - $1::float8 * interval '1 millisecond'
union all
select format('replication slot %s', s.slot_name), null, format('it holds rows of %s transactions', age(s.xmin)),
  format('select pg_drop_replication_slot(%L);', s.slot_name)
from pg_replication_slots s
where not s.active
  and age(s.xmin) > 1000000
order by age_ms desc nulls last
limit 10`

export const checkSnapshots: Check = async (patient) => {
  const rows = await rowsOf<LongRow>(patient, longSql, [patient.longTransactionMs])
  if (rows.length === 0) return [ok('transactions', `none open for longer than ${shortDuration(patient.longTransactionMs)}`)]
  return rows.map(({ what, age_ms, detail, fix }) =>
    fault(
      'transactions',
      `${what} has been open for ${age_ms === null ? 'long' : shortDuration(age_ms)} and prevents vacuum from removing dead rows (${oneLine(detail)}).`,
      fix,
    ),
  )
}
