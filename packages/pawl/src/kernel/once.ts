// Once: a key written in the transaction of its effect. A caller that finds the key knows that the effect happened, and gets its result; so a
// caller whose commit was never answered asks again with the same key and nothing is applied twice.

import type { AnyTx } from '../db/adapters.ts'
import { type Db, dbOf } from '../db/db.ts'
import { statement } from '../db/statement.ts'
import { delayMsMax } from './clock.ts'
import { duration, refused, required, resolve, type TableOf, text } from './options.ts'
import { toJson } from './payload.ts'

const takeStatement = statement(import.meta.url, 'once-take')
const readStatement = statement(import.meta.url, 'once-read')
const retakeStatement = statement(import.meta.url, 'once-retake')
const storeStatement = statement(import.meta.url, 'once-store')

const resultLimits = { bytesMax: 1_048_576 }
/** An entry of the primary key, of all three names, takes at most 2,704 bytes. */
const nameBytesMax = 2500

export interface OnceKey {
  readonly tenant?: string
  /** What the key is a key of, such as 'payment'. 1 to 200 characters. */
  readonly namespace: string
  /** 1 to 500 characters; with tenant and namespace at most 2,500 bytes. */
  readonly key: string
  /** How long the key is kept, by the database's clock. After that the work may run again. Default: forever. */
  readonly ttl?: number | string
}

export const onceTable = {
  tenant: text({ from: 0, to: 100, default: '', doc: 'The tenant of the key.' }),
  namespace: required(text({ to: 200, doc: "The namespace of the key, such as 'payment'." })),
  key: required(text({ to: 500, doc: 'The key of the effect that must happen once.' })),
  ttl: duration({ from: 1, to: delayMsMax, otherwise: 'forever', doc: 'How long the key is kept.' }),
} satisfies TableOf<OnceKey>

export interface OnceAnswer<Result> {
  /** true: the work ran in this transaction. false: it had run before, and this is what it gave then. */
  readonly isFirst: boolean
  readonly result: Result
}

/**
 * Runs the work unless its key is there already, in your transaction. Callers with the same key wait for each other: one runs the work, the
 * others get its stored result, or run it themselves if the first rolled back. If the work throws, roll back, and the key goes with it.
 * The result is stored as JSON, and every caller gets what JSON gives back of it, the first too. Above READ COMMITTED a caller that had to wait gets 40001, as with any concurrent write.
 */
export async function once<Result>(tx: AnyTx, key: OnceKey, work: () => Promise<Result> | Result): Promise<OnceAnswer<Result>> {
  const { ttl, ...name } = resolve('once', onceTable, key)
  const bytes = Buffer.byteLength(name.tenant + name.namespace + name.key)
  if (bytes > nameBytesMax)
    throw refused(
      'once',
      `tenant, namespace and key must be at most ${nameBytesMax} bytes together, got ${bytes}; use a hash as the key`,
    )
  const taking = { ...name, ttl_ms: ttl ?? null }
  const db = dbOf(tx)
  for (;;) {
    if ((await db.run(takeStatement, taking)).length > 0) return runFirst(db, name, work)
    const [found] = await db.run<{ result: string | null; is_expired: number }>(readStatement, name)
    if (found === undefined) continue
    if (Number(found.is_expired) === 0) return { isFirst: false, result: JSON.parse(found.result ?? 'null') as Result }
    if ((await db.run(retakeStatement, taking)).length > 0) return runFirst(db, name, work)
  }
}

async function runFirst<Result>(
  db: Db,
  name: Readonly<Record<'tenant' | 'namespace' | 'key', string>>,
  work: () => Promise<Result> | Result,
) {
  const result = await work()
  const text = result === undefined ? 'null' : toJson(result, `The result under once key '${name.key}': result`, resultLimits)
  await db.run(storeStatement, { ...name, result: text })
  return { isFirst: true, result: JSON.parse(text) as Result }
}
