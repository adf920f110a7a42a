// Everything a check may look at, read once after healing: the database in one snapshot, and what each process wrote down.

import { type Entry, readHistory } from '../history.ts'
import type { Rig } from '../rig.ts'
import type { RunEnd } from '../scenario.ts'
import type { SetName } from './sets.ts'

export interface StoredScope {
  readonly id: string
  readonly set: SetName
  readonly place: string
  readonly committed: number
  readonly nextNumber: number
  readonly live: number
}

export interface StoredSubmission {
  readonly id: string
  readonly scope: string
  readonly origin: string
  readonly state: string
  readonly revision: number
  readonly number: number | null
  readonly name: string | null
  readonly by: string | null
  readonly lines: number
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  readonly deleted: number
  readonly error: string | null
}

export interface StoredVersion {
  readonly scope: string
  readonly key: string
  readonly number: number
  readonly submission: string
  readonly status: string
  readonly mark: string | null
}

/** A change of a submission's state or revision, in the order in which they were made. */
export interface Change {
  readonly at: number
  readonly actor: string
  readonly submission: string
  readonly scope: string
  readonly from: string | null
  readonly to: string | null
  readonly oldRevision: number | null
  readonly newRevision: number | null
  readonly number: number | null
  readonly baseline: string
  readonly scopeRevision: string | null
  readonly leftOver: number
}

/** A statement that wrote or purged versions of one submission. */
export interface Written {
  readonly actor: string
  readonly what: 'insert' | 'delete'
  readonly submission: string
  readonly number: number
  readonly versions: number
  readonly holder: string | null
  readonly jobState: string | null
}

export interface StoredEvent {
  readonly type: string
  readonly set: string
  readonly submission: string
  readonly number: number
  readonly created: number | null
  readonly updated: number | null
  readonly unchanged: number | null
  readonly deleted: number | null
}

export interface Facts {
  readonly entries: readonly Entry[]
  readonly scopes: readonly StoredScope[]
  readonly submissions: readonly StoredSubmission[]
  readonly versions: readonly StoredVersion[]
  /** Records that have no version at all. */
  readonly empty: readonly { readonly scope: string; readonly key: string }[]
  /** Versions whose record is not there. */
  readonly orphans: readonly { readonly submission: string; readonly number: number }[]
  readonly changes: readonly Change[]
  readonly written: readonly Written[]
  readonly events: readonly StoredEvent[]
  /** Marks of puts whose caller wrote a row beside them. */
  readonly beside: ReadonlySet<string>
  readonly liveJobs: readonly {
    readonly id: string
    readonly kind: string
    readonly state: string
    readonly error: string | null
  }[]
  /** Staged rows of what is committed. */
  readonly staged: number
  /** Attempts of an apply that ended with their process. */
  readonly takeOvers: number
  readonly refusals: number
  readonly isDrained: boolean
  readonly notStopped: readonly string[]
}

/** What a check calls with each thing it finds. */
export type Find = (message: string) => void

type Row = Record<string, unknown>

export async function readFacts(rig: Rig, end: RunEnd): Promise<Facts> {
  const client = await rig.admin.connect()
  const rows = async <T = Row>(text: string) => (await client.query(text)).rows as T[]
  const count = async (text: string) => Number((await rows(text))[0]!.n)
  try {
    await client.query('begin isolation level repeatable read read only')
    const facts: Facts = {
      entries: readHistory(rig.dir),
      scopes: await rows(scopesSql),
      submissions: await rows(submissionsSql),
      versions: await rows(versionsSql),
      empty: await rows(emptySql),
      orphans: await rows(orphansSql),
      changes: (await rows(changesSql)).map(toChange),
      written: await rows(writtenSql),
      events: await rows(eventsSql),
      beside: new Set((await rows('select mark from torture.beside')).map((row) => String(row.mark))),
      liveJobs: await rows(
        "select id::text as id, kind, state, last_error as error from pawl.job where kind = 'pawl.records.apply' order by id",
      ),
      staged: await count(
        `select count(*) as n from pawl.submission u
         join pawl.submission_row r on r.tenant = u.tenant and r.submission = u.id where u.state = 'submitted'`,
      ),
      takeOvers: await count(
        "select count(*) as n from pawl.job_attempt where kind = 'pawl.records.apply' and outcome = 'crashed'",
      ),
      refusals: await count('select count(*) as n from pawl.refusal'),
      ...end,
    }
    await client.query('commit')
    return facts
  } finally {
    client.release()
  }
}

const scopesSql = `
  select id::text as id, record_set as set, (scope::jsonb ->> 0) as place, committed::integer as committed,
    next_number::integer as "nextNumber", live::integer as live
  from pawl.record_scope order by id`

const submissionsSql = `
  select id::text as id, scope_id::text as scope, origin, state, revision, number::integer as number, name, submitted_by as by,
    lines::integer as lines, created::integer as created, updated::integer as updated, unchanged::integer as unchanged,
    deleted::integer as deleted, error
  from pawl.submission order by scope_id, number, id`

const versionsSql = `
  select r.scope_id::text as scope, r.key, v.number::integer as number, v.submission::text as submission, v.status, v.data ->> 'mark' as mark
  from pawl.record r join pawl.record_version v on v.tenant = r.tenant and v.record_id = r.id
  order by r.scope_id, r.key, v.number`

const emptySql = `
  select r.scope_id::text as scope, r.key from pawl.record r
  where not exists (select from pawl.record_version v where v.tenant = r.tenant and v.record_id = r.id)`

const orphansSql = `
  select v.submission::text as submission, v.number::integer as number from pawl.record_version v
  where not exists (select from pawl.record r where r.tenant = v.tenant and r.id = v.record_id)`

const changesSql = 'select * from torture.change order by n'

const writtenSql = `
  select actor, what, submission::text as submission, number::integer as number, versions::integer as versions, holder,
    job_state as "jobState"
  from torture.written order by n`

const eventsSql = `
  select type, aggregatetype as set, payload ->> 'submission' as submission, (payload ->> 'number')::integer as number,
    (payload ->> 'created')::integer as created, (payload ->> 'updated')::integer as updated,
    (payload ->> 'unchanged')::integer as unchanged, (payload ->> 'deleted')::integer as deleted
  from pawl.event where aggregatetype in ('kept', 'whole', 'bulk') order by seq`

function toChange(row: Row): Change {
  return {
    at: (row.at as Date).getTime(),
    actor: String(row.actor),
    submission: String(row.submission),
    scope: String(row.scope_id),
    from: row.from_state as string | null,
    to: row.to_state as string | null,
    oldRevision: row.old_revision as number | null,
    newRevision: row.new_revision as number | null,
    number: row.number === null ? null : Number(row.number),
    baseline: String(row.baseline),
    scopeRevision: row.scope_revision === null ? null : String(row.scope_revision),
    leftOver: Number(row.left_over),
  }
}

export function groupBy<T>(list: readonly T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>()
  for (const item of list) {
    const group = groups.get(keyOf(item))
    if (group === undefined) groups.set(keyOf(item), [item])
    else group.push(item)
  }
  return groups
}
