// What every part of records works with: the database, the sets, and the jobs that carry its work.

import type { Logger } from '../config.ts'
import { type AnyTx, type Tx, toTx } from '../db/adapters.ts'
import { type Pool, unavailable } from '../db/driver.ts'
import { inOwnPath, ownPathSql } from '../db/own-path.ts'
import { bind, type Parameter, type Statement, type StatementNames } from '../db/statement.ts'
import { OwnTransaction } from '../db/transaction.ts'
import type { Jobs } from '../jobs/index.ts'
import { retrying } from '../kernel/retry.ts'
import type { Ends } from './ends.ts'
import type { DefinedSet } from './sets.ts'
import type { Sweep } from './sweep.ts'

export interface RecordsCore {
  readonly pool: Pool
  readonly sets: Map<string, DefinedSet>
  /** Sets whose description this process has stored. */
  readonly kept: Set<string>
  readonly jobs: (tenant: string) => Jobs
  /** Of this process, whoever waits in it. */
  readonly ends: Ends
  /** Of this process, for all tenants. */
  readonly sweep: Sweep
  readonly logger: Pick<Logger, 'error'>
  /** Of statements in transactions, prepared under a name; undefined behind a transaction pooler. */
  readonly names: StatementNames | undefined
}

export type Values = Readonly<Record<string, Parameter>>

export async function run<Row>(tx: Tx, query: Statement, values: Values): Promise<Row[]> {
  return (await tx.query<Row>(query.text, bind(query, values))).rows
}

/** Reads outside any transaction. Prepared where that is possible: planning a page of records takes as long as reading it. */
export async function read<Row>(core: RecordsCore, query: Statement, values: Values): Promise<Row[]> {
  const config = {
    text: query.text,
    values: bind(query, values) as unknown[],
    ...(core.names !== undefined && { name: query.name }),
  }
  try {
    return await retrying(async () => (await core.pool.query(config)).rows as Row[])
  } catch (error) {
    throw unavailable(error)
  }
}

/** For a statement over all rows of a submission, of which there may be millions: a quarter of an hour. */
export const wholeMs = 15 * 60_000

/**
 * A transaction of our own, once. `isInert`: nobody can see what it writes before a later one commits, which does wait for the disk; a crash of
 * the server loses the end of its log, so it never loses this and keeps that. Whoever goes on after a crash must notice what is lost.
 */
export async function transact<Answer>(
  core: RecordsCore,
  work: (tx: OwnTransaction) => Promise<Answer>,
  { statementMs, isInert = false }: { statementMs?: number | undefined; isInert?: boolean } = {},
): Promise<Answer> {
  // Behind a transaction pooler there is no session that has our search path.
  const path = core.names === undefined ? [ownPathSql] : []
  const settings = [...path, ...(isInert ? ['set local synchronous_commit = off'] : [])].join('; ') || undefined
  const tx = new OwnTransaction(await core.pool.connect(), { names: core.names, statementMs, settings })
  try {
    const answer = await work(tx)
    await tx.commit()
    return answer
  } catch (error) {
    await tx.rollback()
    throw error
  } finally {
    tx.release()
  }
}

/** In the caller's transaction, or in one of our own that is tried again when the database says that nothing was applied. */
export async function transactIn<Answer>(
  core: RecordsCore,
  tx: AnyTx | undefined,
  work: (tx: Tx) => Promise<Answer>,
  statementMs?: number,
): Promise<Answer> {
  if (tx !== undefined) return work(inOwnPath(toTx(tx)))
  try {
    return await retrying(() => transact(core, work, { statementMs }))
  } catch (error) {
    throw unavailable(error)
  }
}
