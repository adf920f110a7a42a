// Pawl's schema: whether it is there, of this release, unchanged, and whether this role may use it.

import { readMigrations } from 'pawl'
import pg from 'pg'
import { type Check, creatorsIn, type Finding, fault, ok, type Patient, rowsOf } from './check.ts'

export interface CheckedSchema {
  readonly findings: Finding[]
  /** false: everything that follows is skipped. */
  readonly canLookInside: boolean
  /** Other SQL than that of this release made it: the drift check says what differs. */
  readonly isChanged?: boolean
}

export async function checkSchema(patient: Patient): Promise<CheckedSchema> {
  const [row] = await rowsOf<{ there: boolean; usable: boolean; role: string }>(
    patient,
    `select exists (select from pg_namespace where nspname = 'pawl') as there, current_user as role,
       exists (select from pg_namespace n where n.nspname = 'pawl' and has_schema_privilege(n.oid, 'usage')) as usable`,
  )
  const { there, usable, role } = row!
  if (!there)
    return { findings: [fault('schema', "Pawl's schema is missing from this database.", 'pawl migrate')], canLookInside: false }
  if (!usable)
    return {
      findings: [fault('rights', `The role ${role} may not use the schema pawl.`, grantAll(pg.escapeIdentifier(role)))],
      canLookInside: false,
    }
  return checkMigrations(patient)
}

async function checkMigrations(patient: Patient): Promise<CheckedSchema> {
  const ours = readMigrations()
  const [ledger] = await rowsOf<{ there: boolean }>(
    patient,
    "select exists (select from pg_tables where schemaname = 'pawl' and tablename = 'migration') as there",
  )
  const broken = (what: string, fix = 'pawl migrate') => ({ findings: [fault('schema', what, fix)], canLookInside: false })
  if (!ledger!.there) return broken('The schema pawl exists, but its table of migrations does not.')
  const applied = new Map(
    (await rowsOf<{ name: string; checksum: string }>(patient, 'select name, checksum from pawl.migration')).map(
      ({ name, checksum }) => [name, checksum],
    ),
  )
  const missing = ours.filter(({ name }) => !applied.has(name))
  if (missing.length > 0) return broken(`The schema lacks ${missing.map(({ name }) => name).join(', ')}.`)
  const changed = ours.filter(({ name, checksum }) => applied.get(name) !== checksum)
  if (changed.length > 0) {
    const what = `${changed.map(({ name }) => name).join(', ')} was applied with different SQL than this release has.`
    const fix = 'restore the released files of migrations/; the drift check below lists the differences'
    return { ...broken(what, fix), isChanged: true }
  }
  const newer = [...applied.keys()].filter((name) => !ours.some((migration) => migration.name === name))
  const what = newer.length > 0 ? `newer than this release by ${newer.join(', ')}` : `${ours.length} migrations, up to date`
  return { findings: [ok('schema', what)], canLookInside: true }
}

const strangersMax = 20

const strangersSql = `
with thing as (
  select c.oid::regclass::text as name, c.relowner as owner, case when c.relkind = 'S' then 'sequence' else 'table' end as kind
  from pg_class c
  where c.relnamespace = 'pawl'::regnamespace
    and c.relkind in ('r', 'p', 'S')
    and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
  union all
  select f.oid::regprocedure::text, f.proowner, 'function'
  from pg_proc f
  where f.pronamespace = 'pawl'::regnamespace
)
select format('%s %s (%s)', t.kind, t.name, t.owner::regrole) as what,
  format('alter %s %s owner to %s;', t.kind, t.name, n.nspowner::regrole) as fix
from thing t
join pg_namespace n on n.nspname = 'pawl'
where t.owner <> n.nspowner
order by t.kind desc, t.name`

/** PostgreSQL lets only an owner change a table, and a table takes its partitions along: one owner for all, or a migration fails half-way. */
export const checkOwner: Check = async (patient) => {
  const [{ owner } = { owner: '' }] = await rowsOf<{ owner: string }>(
    patient,
    "select nspowner::regrole::text as owner from pg_namespace where nspname = 'pawl'",
  )
  const strangers = await rowsOf<{ what: string; fix: string }>(patient, strangersSql)
  const findings = (await creatorsIn(patient, ['pawl'])).map(({ role }) =>
    fault(
      'owner',
      `${role === 'public' ? 'Every role' : `The role ${role}`} may create in schema pawl, where a function of its own could be called in place of Pawl's.`,
      `revoke create on schema pawl from ${role === 'public' ? role : pg.escapeIdentifier(role)};`,
    ),
  )
  if (strangers.length > 0) {
    const named = strangers.slice(0, strangersMax).map(({ what }) => what)
    if (strangers.length > strangersMax) named.push(`${strangers.length - strangersMax} more`)
    findings.push(
      fault(
        'owner',
        `Schema pawl belongs to ${owner}, but not ${named.join(', ')}: a migration of ${owner} cannot change them.`,
        strangers.map(({ fix }) => fix).join(' '),
      ),
    )
  }
  return findings.length > 0 ? findings : [ok('owner', `${owner} owns the schema and everything in it`)]
}

export const checkRights: Check = async (patient) => {
  const rows = await rowsOf<{ what: string; fix: string }>(
    patient,
    `select format('%s on %s', string_agg(p, ', ' order by p), c.oid::regclass) as what,
       format('grant %s on %s to %I;', string_agg(p, ', ' order by p), c.oid::regclass, current_user) as fix
     from pg_class c
     cross join unnest(array['select', 'insert', 'update', 'delete']) p
     where c.relnamespace = 'pawl'::regnamespace
       and c.relkind in ('r', 'p')
       and not c.relispartition
       and (p = 'select' or c.relname not in ('migration', 'installation'))
       and not has_table_privilege(c.oid, p)
     group by c.oid
     union all
     select format('usage on %s', c.oid::regclass), format('grant usage on sequence %s to %I;', c.oid::regclass, current_user)
     from pg_class c
     where c.relnamespace = 'pawl'::regnamespace
       and case when c.relkind = 'S' then not has_sequence_privilege(c.oid, 'usage') else false end
       and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
     union all
     select format('execute on %s', f.oid::regprocedure), format('grant execute on function %s to %I;', f.oid::regprocedure, current_user)
     from pg_proc f
     where f.pronamespace = 'pawl'::regnamespace
       and not has_function_privilege(f.oid, 'execute')`,
  )
  if (rows.length > 0)
    return [fault('rights', `The role lacks ${rows.map(({ what }) => what).join('; ')}.`, rows.map(({ fix }) => fix).join(' '))]
  const [owner] = await rowsOf<{ owns: boolean; owner: string; role: string; is_superuser: boolean }>(
    patient,
    // From PostgreSQL 16 on a member may lack either: it needs the owner's rights, and has to give it the days that it adds.
    `select pg_has_role(c.relowner, 'usage')
         and case when current_setting('server_version_num')::integer >= 160000 then pg_has_role(c.relowner, 'set') else true end as owns,
       c.relowner::regrole::text as owner, quote_ident(current_user) as role, r.rolsuper as is_superuser
     from pg_class c
     join pg_roles r on r.oid = c.relowner
     where c.oid = 'pawl.job_history'::regclass`,
  )
  if (owner?.owns) return [ok('rights', `${owner.role} has all privileges that workers need`)]
  return [
    fault(
      'rights',
      `Workers with role ${owner!.role} cannot create or drop daily partitions, which ${owner!.owner} owns, so old days are never removed.`,
      owner!.is_superuser
        ? `run one worker as ${owner!.owner}; a role that only calls needs none. Do not grant ${owner!.owner}: it is a superuser. In a new database, migrate as a role that is not one, and grant that`
        : `grant ${owner!.owner} to ${owner!.role}; or run one worker as ${owner!.owner}; a role that only calls needs neither`,
    ),
  ]
}

function grantAll(role: string): string {
  return `grant usage on schema pawl to ${role}; grant select, insert, update, delete on all tables in schema pawl to ${role}; grant usage on all sequences in schema pawl to ${role};`
}

/** A test that moved the clock and did not put it back would hold up or hasten everything. */
export const checkPawlClock: Check = async (patient) => {
  const [row] = await rowsOf<{ ms: number }>(
    patient,
    'select (extract(epoch from pawl.now() - clock_timestamp()) * 1000)::float8 as ms',
  )
  if (Math.abs(row!.ms) < 1000) return [ok('pawl.now()', 'is the clock of the database')]
  return [
    fault(
      'pawl.now()',
      `is ${Math.round(row!.ms / 1000)} s off the clock of the database: the function was replaced.`,
      'create or replace function pawl.now() returns timestamptz language sql volatile parallel safe return clock_timestamp();',
    ),
  ]
}
