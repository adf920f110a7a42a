// Planted bugs that no rewritten statement could be: a call that is made differently.

import { isPawlError, Jobs } from 'pawl'
import pg from 'pg'
import { OwnTransaction } from '../../packages/pawl/src/db/transaction.ts'
import { HeldJob } from '../../packages/pawl/src/jobs/held.ts'
import { childOptions } from '../child.ts'

/** A shared group's settle travels with its commit, past the place where statements are rewritten. */
export function rewriteSharedSettle(rewrite: (text: string) => string): void {
  const commitWith = OwnTransaction.prototype.commitWith
  OwnTransaction.prototype.commitWith = function (this: OwnTransaction, text, ...more) {
    return commitWith.call(this, text.includes('complete_job') ? text : rewrite(text), ...more)
  }
}

export function completeBeforeCommit(): void {
  const commitWith = OwnTransaction.prototype.commitWith
  OwnTransaction.prototype.commitWith = async function (this: OwnTransaction, text, values, ...more) {
    if (!text.includes('complete_job')) return commitWith.call(this, text, values, ...more)
    const client = new pg.Client({ connectionString: childOptions().url, application_name: 'canary' })
    await client.connect()
    try {
      await client.query(text, [...values])
    } finally {
      await client.end()
    }
    await this.commit()
  }
}

export function blindEnqueue(): void {
  const { enqueue, enqueueMany } = Jobs.prototype
  const insisting = async <T>(call: () => Promise<T>): Promise<T> => {
    for (;;) {
      try {
        return await call()
      } catch (error) {
        if (!isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) throw error
      }
    }
  }
  Jobs.prototype.enqueue = function (this: Jobs, ...args: Parameters<typeof enqueue>) {
    return insisting(() => enqueue.apply(this, args))
  } as typeof enqueue
  Jobs.prototype.enqueueMany = function (this: Jobs, ...args: Parameters<typeof enqueueMany>) {
    return insisting(() => enqueueMany.apply(this, args))
  } as typeof enqueueMany
}

export function deafCancel(): void {
  const cancel = Jobs.prototype.cancel
  Jobs.prototype.cancel = async function (this: Jobs, id, options) {
    const job = await this.get(id)
    return job?.state === 'running' ? { was: 'running' } : cancel.call(this, id, options)
  }
}

export function enqueueOutsideTransaction(): void {
  const { enqueue, enqueueMany } = Jobs.prototype
  Jobs.prototype.enqueue = function (this: Jobs, kind, payload, { tx: _ignored, ...options } = {}) {
    return enqueue.call(this, kind, payload, options)
  } as typeof enqueue
  Jobs.prototype.enqueueMany = function (this: Jobs, kind, payloads, { tx: _ignored, ...options } = {}) {
    return enqueueMany.call(this, kind, payloads, options)
  } as typeof enqueueMany
}

export function keyPerAttempt(): void {
  Object.defineProperty(HeldJob.prototype, 'idempotencyKey', {
    get(this: HeldJob) {
      return `${this.id}-${this.attempt}`
    },
  })
}

/** In the first settle of each process: by then it has started. */
export function dropRejection(): void {
  const commitWith = OwnTransaction.prototype.commitWith
  OwnTransaction.prototype.commitWith = async function (this: OwnTransaction, ...args: Parameters<typeof commitWith>) {
    OwnTransaction.prototype.commitWith = commitWith
    await commitWith.apply(this, args)
    setTimeout(() => void Promise.reject(new Error('planted')), 200)
  }
}
