// Plants a canary: in a process under test, in its database, and in the process that produces and operates.

import { isPawlError, Jobs } from 'pawl'
import pg from 'pg'
import { Connection } from '../../packages/pawl/src/db/driver.ts'
import type { Statement } from '../../packages/pawl/src/db/statement.ts'
import { OwnTransaction } from '../../packages/pawl/src/db/transaction.ts'
import { childOptions } from '../child.ts'
import { type Canary, canaryNamed } from './canaries.ts'

export function plantInProcess(name: string | undefined, slot: string): void {
  if (name === undefined) return
  const canary = canaryNamed(name)
  rewriteStatements(canary, slot)
  if (canary.patches?.includes('complete before commit')) completeBeforeCommit()
}

/** Every engine statement passes here; a shared group's settle passes through commitWith. */
function rewriteStatements({ name, statements = {} }: Canary, slot: string): void {
  const run = Connection.prototype.run
  Connection.prototype.run = function (this: Connection, statement: Statement, values) {
    const rewrite = statements[statement.file]
    return run.call(
      this,
      rewrite === undefined ? statement : { ...statement, name: '', text: rewrite(statement.text, slot) },
      values,
    ) as never
  }
  const settle = statements.settle
  if (name !== 'no-fence' || settle === undefined) return
  const commitWith = OwnTransaction.prototype.commitWith
  OwnTransaction.prototype.commitWith = function (this: OwnTransaction, text, values) {
    return commitWith.call(this, text.includes('complete_job') ? text : settle(text, slot), values)
  }
}

function completeBeforeCommit(): void {
  const commitWith = OwnTransaction.prototype.commitWith
  OwnTransaction.prototype.commitWith = async function (this: OwnTransaction, text, values) {
    if (!text.includes('complete_job')) return commitWith.call(this, text, values)
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

export async function plantInDatabase(
  name: string | undefined,
  query: (text: string) => Promise<{ rows: Record<string, string>[] }>,
): Promise<void> {
  if (name === undefined) return
  for (const [fn, rewrite] of Object.entries(canaryNamed(name).functions ?? {})) {
    const { rows } = await query(
      `select pg_get_functiondef(p.oid) as definition from pg_proc p where p.proname = '${fn}' and p.pronamespace = 'pawl'::regnamespace`,
    )
    await query(rewrite(rows[0]!.definition!))
  }
}

/** In the rig's own process, which produces, operates, and plays single statements. */
export function plantInRig(name: string | undefined): void {
  if (name === undefined) return
  const { patches } = canaryNamed(name)
  rewriteStatements(canaryNamed(name), 'rig')
  if (patches?.includes('blind enqueue')) blindEnqueue()
  if (patches?.includes('deaf cancel')) deafCancel()
}

function blindEnqueue(): void {
  const enqueueMany = Jobs.prototype.enqueueMany
  Jobs.prototype.enqueueMany = async function (this: Jobs, ...args: Parameters<typeof enqueueMany>) {
    for (;;) {
      try {
        return await enqueueMany.apply(this, args)
      } catch (error) {
        if (!isPawlError(error, 'PAWL_COMMIT_UNKNOWN')) throw error
      }
    }
  } as typeof enqueueMany
}

function deafCancel(): void {
  const cancel = Jobs.prototype.cancel
  Jobs.prototype.cancel = async function (this: Jobs, id, options) {
    const job = await this.get(id)
    return job?.state === 'running' ? { was: 'running' } : cancel.call(this, id, options)
  }
}
