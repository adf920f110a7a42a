// An incarnation that is only a row: for tests of the statements, without a process behind it.

import type { Connection } from '../../src/db/driver.ts'
import { textsLiteral } from '../../src/db/statement.ts'
import { type Holder, leaseStatements } from '../../src/kernel/lease.ts'

export interface IncarnationRow {
  readonly name?: string
  readonly host?: string
  readonly queues?: readonly string[]
  readonly kinds?: readonly string[]
  readonly sessions?: string
  readonly leaseMs?: number
  readonly lookMs?: number
}

export async function openIncarnation(connection: Connection, row: IncarnationRow = {}): Promise<Holder> {
  const {
    name = 'test',
    host = 'test',
    queues = ['default'],
    kinds = ['work'],
    sessions = '',
    leaseMs = 3_600_000,
    lookMs = 500,
  } = row
  const [opened] = await connection.run<Holder>(leaseStatements.open, {
    name,
    host,
    pid: 1,
    release: 'test',
    queues: textsLiteral(queues),
    kinds: textsLiteral(kinds),
    concurrency: 1,
    sessions,
    look_ms: lookMs,
    lease_ms: leaseMs,
  })
  return opened!
}

/** What its own process writes names both. */
export function asHolder({ id, nonce }: Holder): { worker: number; nonce: string } {
  return { worker: id, nonce }
}
