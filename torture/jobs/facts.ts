// Everything a check may look at, read once after healing: the database in one snapshot, and what each process wrote down.

import { type Delivery, type Entry, readDeliveries, readHistory } from '../history.ts'
import type { Rig } from '../rig.ts'

export interface Transition {
  readonly n: number
  readonly at: number
  readonly xid: string
  readonly actor: string
  readonly job: string
  readonly kind: string
  readonly from: string | null
  readonly to: string | null
  readonly oldFence: bigint | null
  readonly newFence: bigint | null
  readonly oldHolder: number | null
  readonly newHolder: number | null
  readonly oldAttempt: number | null
  readonly newAttempt: number | null
  readonly oldCrashes: number | null
  readonly newCrashes: number | null
  readonly isSuspect: boolean | null
  readonly neighbours: number | null
}

export interface Effect {
  readonly job: string
  readonly fence: string
  readonly kind: string
  readonly proc: string
  readonly xid: string
}

export interface StoredJob {
  readonly id: string
  readonly kind: string
  /** done, cancelled, or the state of a live one. */
  readonly state: string
  readonly fence: string
  readonly attempt: number
  readonly crashes: number
  readonly key: string | null
  readonly resultFence: string | null
  readonly lastError: string | null
}

export interface EndedAttempt {
  readonly job: string
  readonly fence: string
  readonly outcome: string
  readonly kind: string
  readonly error: string | null
}

export interface LeaseChange {
  readonly at: number
  readonly pawlAt: number
  readonly worker: number
  readonly name: string
  readonly oldUntil: number | null
  readonly newUntil: number
  readonly seenAt: number
  readonly wasClosed: boolean | null
  readonly isClosed: boolean
}

export interface Facts {
  readonly leaseMs: number
  readonly entries: readonly Entry[]
  readonly deliveries: readonly Delivery[]
  readonly transitions: readonly Transition[]
  readonly byJob: ReadonlyMap<string, readonly Transition[]>
  readonly effects: readonly Effect[]
  readonly finished: readonly StoredJob[]
  readonly live: readonly StoredJob[]
  readonly attempts: readonly EndedAttempt[]
  readonly leases: readonly LeaseChange[]
  /** When the clock of the database was stepped, and by how much. */
  readonly steps: readonly { readonly at: number; readonly ms: number }[]
  readonly workerNames: ReadonlyMap<number, string>
  readonly produced: ReadonlySet<string>
  readonly refusals: number
  readonly isDrained: boolean
  readonly notStopped: readonly string[]
}

/** What a check calls with each thing it finds. */
export type Find = (message: string) => void

type Row = Record<string, unknown>

export async function readFacts(rig: Rig, end: { isDrained: boolean; notStopped: readonly string[] }): Promise<Facts> {
  const client = await rig.admin.connect()
  const rows = async (text: string) => (await client.query(text)).rows as Row[]
  try {
    await client.query('begin isolation level repeatable read read only')
    const transitions = (await rows('select * from torture.transition order by n')).map(toTransition)
    const facts: Facts = {
      leaseMs: rig.options.leaseMs,
      entries: readHistory(rig.dir),
      deliveries: readDeliveries(rig.dir),
      transitions,
      byJob: groupBy(transitions, (transition) => transition.job),
      effects: (await rows(
        'select job_id::text as job, fence::text as fence, kind, proc, xid from torture.effect',
      )) as unknown as Effect[],
      finished: (await rows(
        `select id::text as id, kind, outcome as state, fence::text as fence, attempt, crashes, payload ->> 'key' as key,
           result ->> 'fence' as "resultFence", reason as "lastError" from pawl.job_history`,
      )) as unknown as StoredJob[],
      live: (await rows(
        `select id::text as id, kind, state, fence::text as fence, attempt, crashes, payload ->> 'key' as key,
           null as "resultFence", last_error as "lastError" from pawl.job`,
      )) as unknown as StoredJob[],
      attempts: (await rows(
        'select job_id::text as job, fence::text as fence, outcome, kind, error from pawl.job_attempt',
      )) as unknown as EndedAttempt[],
      leases: (
        await rows('select l.*, p.name from torture.lease l left join pawl.worker_process p on p.id = l.worker order by l.n')
      ).map(toLease),
      steps: (await rows('select at, ms from torture.step')).map((row) => ({ at: ms(row.at), ms: Number(row.ms) })),
      workerNames: new Map(
        (await rows("select id, name from pawl.worker_process where tenant = ''")).map((row) => [
          Number(row.id),
          String(row.name),
        ]),
      ),
      produced: new Set((await rows('select key from torture.produced')).map((row) => String(row.key))),
      refusals: Number((await rows('select count(*) as n from pawl.refusal'))[0]!.n),
      ...end,
    }
    await client.query('commit')
    return facts
  } finally {
    client.release()
  }
}

function toTransition(row: Row): Transition {
  return {
    n: Number(row.n),
    at: ms(row.at),
    xid: String(row.xid),
    actor: String(row.actor),
    job: String(row.job_id),
    kind: String(row.kind),
    from: row.from_state as string | null,
    to: row.to_state as string | null,
    oldFence: big(row.old_fence),
    newFence: big(row.new_fence),
    oldHolder: row.old_holder as number | null,
    newHolder: row.new_holder as number | null,
    oldAttempt: row.old_attempt as number | null,
    newAttempt: row.new_attempt as number | null,
    oldCrashes: row.old_crashes as number | null,
    newCrashes: row.new_crashes as number | null,
    isSuspect: row.is_suspect as boolean | null,
    neighbours: row.neighbours as number | null,
  }
}

function toLease(row: Row): LeaseChange {
  return {
    at: ms(row.at),
    pawlAt: ms(row.pawl_at),
    worker: Number(row.worker),
    name: String(row.name),
    oldUntil: row.old_until === null ? null : ms(row.old_until),
    newUntil: ms(row.new_until),
    seenAt: ms(row.seen_at),
    wasClosed: row.was_closed as boolean | null,
    isClosed: row.is_closed as boolean,
  }
}

function ms(value: unknown): number {
  return (value as Date).getTime()
}

function big(value: unknown): bigint | null {
  return value === null ? null : BigInt(value as string)
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
