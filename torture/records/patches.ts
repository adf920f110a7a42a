// Planted bugs that no rewritten statement could be: a call that is made differently.

import { Jobs, RecordScope, Records } from 'pawl'
import pg from 'pg'
import { OwnTransaction } from '../../packages/pawl/src/db/transaction.ts'
import { HeldJob } from '../../packages/pawl/src/jobs/held.ts'
import { sentTexts } from '../canary.ts'
import { childOptions } from '../child.ts'

export function guardNothing(): void {
  HeldJob.prototype.guard = () => Promise.resolve()
}

export function forgetRevisions(): void {
  const { submit, resume } = Records.prototype
  Records.prototype.submit = function (this: Records, id, { revision: _ignored, ...options } = {}) {
    return submit.call(this, id, options)
  }
  Records.prototype.resume = function (this: Records, id, { revision: _ignored, ...options } = {}) {
    return resume.call(this, id, options)
  }
}

export function putWithoutCompare(): void {
  const { put } = RecordScope.prototype
  RecordScope.prototype.put = function (this: RecordScope, row, { number: _ignored, ...options } = {}) {
    return put.call(this, row, options)
  }
}

/** The event is sent on a connection of its own, and is there whatever becomes of the commit. */
export function eventBeforeCommit(): void {
  const [event] = sentTexts('records/submission-event')
  const query = OwnTransaction.prototype.query
  OwnTransaction.prototype.query = async function (this: OwnTransaction, text: string, values: readonly unknown[] = []) {
    if (text !== event) return query.call(this, text, values)
    const client = new pg.Client({ connectionString: childOptions().url, application_name: 'canary' })
    await client.connect()
    try {
      return await client.query(text, [...values])
    } finally {
      await client.end()
    }
  } as typeof query
}

/** Who takes a submission over submits it first, as if it were validated; it is submitting, so that is refused, every time. */
export function recoverThroughGate(): void {
  const defined: Records[] = []
  const defineSet = Records.prototype.define
  Records.prototype.define = function (this: Records, ...args: Parameters<typeof defineSet>) {
    defined.push(this)
    return defineSet.apply(this, args)
  } as typeof defineSet
  const define = Jobs.prototype.define as (this: Jobs, kind: string, options: Applying) => unknown
  Jobs.prototype.define = function (this: Jobs, kind: string, options: Applying) {
    if (kind !== 'pawl.records.apply') return define.call(this, kind, options)
    const run: Applying['run'] = async (job, context) => {
      if (job.attempt > 1) await defined[0]!.submit(job.payload.submission)
      return options.run(job, context)
    }
    return define.call(this, kind, { ...options, run })
  } as never
}

interface Applying {
  run(job: { readonly attempt: number; readonly payload: { readonly submission: string } }, context: unknown): Promise<unknown>
}
