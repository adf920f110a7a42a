// What the checks of both scenarios look at: the log with its events, what writers committed, every change of a cursor, and what each process
// wrote down. Read in one snapshot.

import { createPawl, type LogAudit, silentLogger } from 'pawl'
import type pg from 'pg'
import { type Entry, readHistory } from '../history.ts'
import type { Rig } from '../rig.ts'
import type { RunEnd, Violation } from '../scenario.ts'
import type { EventData } from './transactions.ts'

export interface Logged {
  readonly position: number
  readonly xid: string
  /** Null: the position has no event. */
  readonly id: string | null
  readonly key: string
  readonly type: string
  readonly data: EventData & { readonly t?: number; readonly of?: number }
  readonly bucket: number
}

export interface Wrote {
  readonly batch: string
  readonly i: number
  readonly key: string
  readonly n: number
}

export interface Applied {
  readonly name: string
  readonly generation: number
  readonly position: number
  readonly eventId: string
  readonly key: string
  readonly n: number | null
  readonly proc: string
  readonly xid: string
}

export interface CursorChange {
  readonly actor: string
  readonly name: string
  readonly generation: number
  readonly shard: number
  readonly oldPosition: number
  readonly newPosition: number
  readonly done: string
  readonly oldFence: bigint
  readonly newFence: bigint
  readonly oldHolder: number | null
  readonly newHolder: number | null
}

export interface LogFacts extends RunEnd {
  readonly entries: readonly Entry[]
  /** By position. */
  readonly log: readonly Logged[]
  readonly wrote: readonly Wrote[]
  /** How often each key was written. */
  readonly counters: ReadonlyMap<string, number>
  readonly applied: readonly Applied[]
  readonly changes: readonly CursorChange[]
  readonly shards: ReadonlyMap<string, number>
  readonly workerNames: ReadonlyMap<number, string>
  readonly refusals: number
  readonly audit: LogAudit
}

/** What a check calls with each thing it finds. */
export type Find = (message: string) => void
/** Gives how many things it looked at. */
export type Check<Facts> = (facts: Facts, find: Find) => number

export function runChecks<Facts, Name extends string>(
  checks: Readonly<Record<Name, Check<Facts>>>,
  facts: Facts,
): { checks: Record<string, number>; violations: Violation<Name>[] } {
  const counted: Record<string, number> = {}
  const violations: Violation<Name>[] = []
  for (const [name, run] of Object.entries(checks) as [Name, Check<Facts>][]) {
    counted[name] = run(facts, (message) => violations.push({ check: name, message }))
  }
  return { checks: counted, violations }
}

export type Rows = <Row = Record<string, unknown>>(text: string) => Promise<Row[]>

/** `more` reads in the same snapshot. */
export async function readLogFacts<More>(rig: Rig, end: RunEnd, more: (rows: Rows) => Promise<More>): Promise<LogFacts & More> {
  const audit = await auditLog(rig)
  const client = await rig.admin.connect()
  const rows: Rows = async <Row>(text: string) => (await client.query(text)).rows as Row[]
  try {
    await client.query('begin isolation level repeatable read read only')
    const facts = { ...end, audit, entries: readHistory(rig.dir), ...(await readLog(rows)), ...(await readCursors(rows)) }
    const extra = await more(rows)
    await client.query('commit')
    return { ...facts, ...extra }
  } finally {
    client.release()
  }
}

async function readLog(rows: Rows) {
  const counters = await rows<{ key: string; n: string }>('select key, n from torture.counter')
  return {
    log: await rows<Logged>(
      'select position::float8 as position, xid::text as xid, id::text as id, key, type, data, bucket from torture.log order by position',
    ),
    wrote: await rows<Wrote>('select batch, i, key, n::float8 as n from torture.wrote'),
    counters: new Map(counters.map(({ key, n }) => [key, Number(n)])),
    applied: await rows<Applied>(
      `select name, generation, position::float8 as position, event_id::text as "eventId", key, n::float8 as n, proc, xid::text as xid
       from torture.applied order by id`,
    ),
  }
}

async function readCursors(rows: Rows) {
  const changes = await rows<Record<string, string | null> & pg.QueryResultRow>('select * from torture.cursor_change order by id')
  const holder = (value: string | null | undefined) => (value === null || value === undefined ? null : Number(value))
  const cursors = await rows<{ name: string; shards: number }>('select distinct name, shards from pawl.cursor')
  const workers = await rows<{ id: number; name: string }>("select id, name from pawl.worker_process where tenant = ''")
  return {
    changes: changes.map((row) => ({
      actor: String(row.actor),
      name: String(row.name),
      generation: Number(row.generation),
      shard: Number(row.shard),
      oldPosition: Number(row.old_position),
      newPosition: Number(row.new_position),
      done: String(row.done),
      oldFence: BigInt(row.old_fence!),
      newFence: BigInt(row.new_fence!),
      oldHolder: holder(row.old_holder),
      newHolder: holder(row.new_holder),
    })),
    shards: new Map(cursors.map(({ name, shards }) => [name, shards])),
    workerNames: new Map(workers.map(({ id, name }) => [id, name])),
    refusals: Number((await rows<{ n: string }>('select count(*) as n from pawl.refusal'))[0]!.n),
  }
}

/** The audit that is shipped. */
async function auditLog(rig: Rig): Promise<LogAudit> {
  const proxy = await rig.proxy()
  const pawl = createPawl({ databaseUrl: proxy.url, applicationName: 'judge', logger: silentLogger })
  try {
    return await pawl.events.audit()
  } finally {
    await pawl.close()
    await proxy.stop()
  }
}

/** Of several shards the one that has this event. */
export function shardOf({ bucket }: Pick<Logged, 'bucket'>, shards: number): number {
  return Math.floor(((bucket + 1) * shards - 1) / 1024)
}

/** '{[3,5),[9,10)}' as a question. */
export function rangesOf(text: string): (position: number) => boolean {
  const ranges = [...text.matchAll(/\[(\d+),(\d+)\)/g)].map(([, from, to]) => [Number(from), Number(to)] as const)
  return (position) => ranges.some(([from, to]) => position >= from && position < to)
}

/** Whoever held a cursor before was another incarnation. */
export function takeovers(changes: readonly CursorChange[]): number {
  return changes.filter(({ oldHolder, newHolder }) => oldHolder !== null && newHolder !== null && oldHolder !== newHolder).length
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
