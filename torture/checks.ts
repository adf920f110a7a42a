// The common part of the checks of every scenario: how facts are read, how checks run, and the two checks that every run has.

import { type Entry, readHistory } from './history.ts'
import type { Query } from './recorder.ts'
import type { Rig } from './rig.ts'

export interface Violation<Check extends string = string> {
  readonly check: Check
  readonly message: string
}

export type Find = (message: string) => void
/** Returns the number of things that it checked. */
export type Check<Facts> = (facts: Facts, find: Find) => number

export interface RunEnd {
  readonly isDrained: boolean
  /** Processes that did not stop in order after healing. */
  readonly notStopped: readonly string[]
}

export interface Judged {
  readonly entries: readonly Entry[]
  readonly operations: number
  readonly checks: Readonly<Record<string, number>>
  readonly violations: readonly Violation[]
  /** A run proves something only if none of these is zero: take-overs, refused writes. */
  readonly shown: Readonly<Record<string, number>>
  readonly more: Readonly<Record<string, number | string>>
}

export interface CommonFacts extends RunEnd {
  readonly entries: readonly Entry[]
  /** The processes of incarnations. */
  readonly workerNames: ReadonlyMap<string, string>
  readonly refusals: number
}

/** The database in one snapshot, and what each process wrote down. */
export async function readFacts<More>(rig: Rig, end: RunEnd, more: (rows: Query) => Promise<More>): Promise<CommonFacts & More> {
  const client = await rig.admin.connect()
  const rows: Query = async (text, values = []) => (await client.query(text, values)).rows as never
  try {
    await client.query('begin isolation level repeatable read read only')
    const workers = await rows<{ id: string; name: string }>("select id::text, name from pawl.worker_process where tenant = ''")
    const [{ refusals } = { refusals: 0 }] = await rows<{ refusals: number }>(
      'select count(*)::integer as refusals from pawl.refusal',
    )
    const facts = {
      ...end,
      entries: readHistory(rig.dir),
      workerNames: new Map(workers.map(({ id, name }) => [id, name])),
      refusals,
    }
    const found = await more(rows)
    await client.query('commit')
    return { ...facts, ...found }
  } finally {
    client.release()
  }
}

function runChecks<Facts, Name extends string>(
  checks: Readonly<Record<Name, Check<Facts>>>,
  facts: Facts,
): { checks: Record<Name, number>; violations: Violation<Name>[] } {
  const violations: Violation<Name>[] = []
  const counted = Object.entries<Check<Facts>>(checks).map(([name, run]) => {
    return [name, run(facts, (message) => violations.push({ check: name as Name, message }))]
  })
  return { checks: Object.fromEntries(counted) as Record<Name, number>, violations }
}

/** Operations are what was asked for, and every change that followed. */
export function judged<Facts extends CommonFacts, Name extends string>(
  checks: Readonly<Record<Name, Check<Facts>>>,
  facts: Facts,
  { changes, shown, more }: Pick<Judged, 'shown' | 'more'> & { readonly changes: number },
): Judged {
  const { entries } = facts
  const operations = count(entries, ({ ph }) => ph === 'invoke') + changes
  return { entries, operations, ...runChecks(checks, facts), shown, more: { ...more, ...shown } }
}

export type GeneralCheckName = 'no process fails' | 'indexes sound'

export async function generalChecks(rig: Rig, entries: readonly Entry[]) {
  const violations: Violation<GeneralCheckName>[] = []
  const exits = told(entries, 'exit')
  // Processes are killed and told to stop. A process that ends by itself with an error has a bug.
  for (const { slot, start, code } of exits.filter(({ code }) => code !== 0 && code !== null))
    violations.push({ check: 'no process fails', message: `${slot}.${start} ended by itself with code ${code}` })
  // The server was killed while it wrote: its indexes must still agree with their tables.
  await rig.query('create extension if not exists amcheck')
  const indexes = await rig.query<{ name: string }>(
    `select i.indexrelid::regclass::text as name from pg_index i
     join pg_class c on c.oid = i.indexrelid and c.relkind = 'i' and c.relnamespace = 'pawl'::regnamespace
     join pg_am a on a.oid = c.relam and a.amname = 'btree'`,
  )
  for (const { name } of indexes) {
    const error = await rig.admin.query('select bt_index_check($1::regclass, true)', [name]).then(() => undefined, String)
    if (error !== undefined) violations.push({ check: 'indexes sound', message: `${name}: ${error}` })
  }
  return { checks: { 'no process fails': exits.length, 'indexes sound': indexes.length }, violations }
}

/** Items without a key are left out. */
export function groupBy<T>(list: Iterable<T>, keyOf: (item: T) => string | undefined): Map<string, T[]> {
  const groups = new Map<string, T[]>()
  for (const item of list) {
    const key = keyOf(item)
    if (key === undefined) continue
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [item])
    else group.push(item)
  }
  return groups
}

/** The lines of one operation, or those with this phase. */
export const told = (entries: readonly Entry[], op: string, ph?: Entry['ph']): Entry[] =>
  entries.filter((entry) => entry.op === op && (ph === undefined || entry.ph === ph))

export const count = <T>(list: readonly T[], is: (item: T) => boolean): number => list.filter(is).length
