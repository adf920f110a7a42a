// A transaction of ours on a pooled client. Statements are pipelined, so `begin` travels with the first of them and `commit` with the
// last; each is answered on its own, and a commit that answers ROLLBACK is a failure.

import { PawlError } from '../errors.ts'
import type { Tx } from './adapters.ts'
import { classify } from './classify.ts'
import { cork, type PoolClient, type QueryResult } from './driver.ts'

export class OwnTransaction implements Tx {
  readonly #client: PoolClient
  readonly #begun: Promise<unknown>
  #isOpen = true
  #broken: unknown

  constructor(client: PoolClient) {
    this.#client = client
    // What the handler sends at once leaves in the same packet.
    process.nextTick(cork(client))
    this.#begun = client.query('begin isolation level read committed')
    this.#begun.catch((error: unknown) => {
      this.#broken = error
    })
  }

  async query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<{ rows: Row[] }> {
    if (!this.#isOpen) {
      throw new PawlError('PAWL_TX_REQUIRED', 'This transaction has ended. Await every query of a tx handler before it returns.')
    }
    const result = await this.#client.query(text, values.length > 0 ? [...values] : undefined)
    return { rows: result.rows as Row[] }
  }

  /** Sends the last statement, prepared under a name if it has one, and the commit together. Rejects unless the server said COMMIT. */
  async commitWith(text: string, values: readonly unknown[], name?: string): Promise<void> {
    this.#isOpen = false
    const uncork = cork(this.#client)
    const answers = [
      this.#begun,
      this.#client.query({ text, values: [...values], ...(name === undefined ? {} : { name }) }),
      this.#client.query('commit'),
    ] as const
    uncork()
    const [, settled, committed] = await Promise.allSettled(answers)
    if (settled.status === 'rejected') throw this.#commitFailure(settled.reason, committed)
    if (committed.status === 'rejected') throw commitUnknown(committed.reason)
    assertCommitted(committed.value)
  }

  async commit(): Promise<void> {
    this.#isOpen = false
    const [, committed] = await Promise.allSettled([this.#begun, this.#client.query('commit')])
    if (committed.status === 'rejected') throw commitUnknown(committed.reason)
    assertCommitted(committed.value)
  }

  async rollback(): Promise<void> {
    this.#isOpen = false
    await Promise.allSettled([this.#begun, this.#client.query('rollback')])
  }

  /** Puts the client back, or away if its connection is no longer sound. */
  release(): void {
    const status = (this.#client as unknown as { getTransactionStatus?(): string | null }).getTransactionStatus?.()
    this.#client.release(this.#broken !== undefined || (status !== undefined && status !== null && status !== 'I'))
  }

  // When the connection broke after both were sent, the commit may have happened although the last statement has no answer.
  #commitFailure(reason: unknown, committed: PromiseSettledResult<QueryResult>): unknown {
    return classify(reason) === 'connection' && committed.status === 'rejected' ? commitUnknown(committed.reason) : reason
  }
}

export function assertCommitted(result: { command: string }): void {
  if (result.command === 'COMMIT') return
  throw new PawlError(
    'PAWL_ROLLED_BACK',
    'The commit was answered with ROLLBACK: an earlier statement of the transaction had failed.',
  )
}

function commitUnknown(reason: unknown): unknown {
  if (classify(reason) !== 'connection' || wasNeverSent(reason)) return reason
  return new PawlError(
    'PAWL_COMMIT_UNKNOWN',
    'The connection broke during the commit, so whether it happened is not known yet.',
    { cause: reason },
  )
}

/** The driver says this of a connection that was dead before: then the commit never left, and the transaction is surely not there. */
function wasNeverSent(reason: unknown): boolean {
  return reason instanceof Error && /not queryable/.test(reason.message)
}
