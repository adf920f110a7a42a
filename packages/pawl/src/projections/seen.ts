// Read-your-writes: waits until a projection has applied what a transaction appended. The token names the transaction, because positions
// are given only after its commit.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Pool } from '../db/driver.ts'
import { statement } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import type { Resolved } from '../kernel/options.ts'
import { read } from '../kernel/retry.ts'
import type { Target } from './operator.ts'
import type { seenTable } from './options.ts'
import type { Token } from './types.ts'

const seenStatement = statement(import.meta.url, 'seen')

interface Row {
  readonly states: string
  readonly is_unheld: boolean
  readonly status: 'in progress' | 'committed' | 'aborted' | null
  readonly events: number
  readonly unapplied: number
  readonly parked: number
  readonly dirty: number
}

export async function waitUntilSeen(
  pool: Pool,
  target: Target,
  token: Token,
  options: Resolved<typeof seenTable>,
): Promise<void> {
  const { tenant, name } = target
  const { timeout: timeoutMs, signal } = options
  const deadlineMs = monotonicMs() + timeoutMs
  const xid = xidOf(token)
  for (let waitMs = 2; ; waitMs = Math.min(waitMs * 1.5, 50)) {
    const [row] = await read<Row>(pool, seenStatement, { tenant, name, xid })
    if (isSeen(row, name, token)) return
    if (monotonicMs() + waitMs > deadlineMs) throw tooLate(row, name, timeoutMs)
    await sleep(waitMs, undefined, signal === undefined ? {} : { signal })
  }
}

function xidOf(token: Token): string {
  const [, xid] = /^(\d{1,20})(?::|$)/.exec(String(token)) ?? []
  if (xid !== undefined) return xid
  throw new PawlError('PAWL_CONFIG', `token must be one that pawl.events.append returned, got ${shown(token)}.`)
}

function isSeen(row: Row | undefined, name: string, token: Token): boolean {
  if (row === undefined)
    throw new PawlError('PAWL_NOT_FOUND', `There is no projection '${name}'. A worker that defines it creates it when it starts.`)
  if (row.status === 'aborted')
    throw new PawlError('PAWL_NOT_FOUND', `The transaction of token ${token} was rolled back: its events do not exist.`)
  if (row.parked > 0)
    throw new PawlError(
      'PAWL_PARKED',
      `An event of token ${token} could not be applied by '${name}', and its key is parked. See pawl.projections.parked('${name}').`,
    )
  // Without a status the transaction is so old that the server forgot it: then what it wrote was sequenced long ago.
  return row.status !== 'in progress' && row.unapplied === 0 && row.dirty === 0
}

function tooLate(row: Row | undefined, name: string, timeoutMs: number): PawlError {
  const nobody = row?.is_unheld ? ' No worker holds it: start one in a process that defines it.' : ''
  const state = row?.states === undefined || row.states === 'running' ? nobody : ` It is ${row.states}.`
  const why = row?.status === 'in progress' ? ' The transaction that appended is still open.' : state
  return new PawlError('PAWL_TIMED_OUT', `'${name}' did not apply the events within ${timeoutMs} ms.${why}`)
}
