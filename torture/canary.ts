// Known bugs, planted on purpose. A checker that does not find them would not find the real ones either. Product code knows nothing of
// them: statements are rewritten on their way to the database in the process under test, functions are replaced in its database.

import { Connection } from '../packages/pawl/src/db/driver.ts'
import type { Statement } from '../packages/pawl/src/db/statement.ts'

export interface Canary<Check extends string = string> {
  readonly name: string
  /** The bug, in a sentence. */
  readonly bug: string
  /** What finding it proves of the checker. */
  readonly proves: string
  /** The check that must find it: to be late, or broken in some other way, is not to be caught. */
  readonly caughtBy: Check
  /** The story that makes it show for certain. */
  readonly story: string
  /** By statement file. */
  readonly statements?: Readonly<Record<string, (text: string, slot: string) => string>>
  /** SQL functions, by name. */
  readonly functions?: Readonly<Record<string, (definition: string) => string>>
  /** Anything else, in a process under test. */
  inProcess?(slot: string): void
  /** Anything else, in the rig's own process, which produces and operates. */
  inRig?(): void
}

/** A rewrite that changes nothing would be a canary that cannot sing: it fails loudly when the SQL has changed. */
export function swap(from: string | RegExp, to: string): (text: string) => string {
  return (text) => {
    const changed = text.replace(from, to)
    if (changed === text) throw new Error(`A canary found nothing to rewrite: ${from} is not in\n${text}`)
    return changed
  }
}

export function plantInProcess(canary: Canary | undefined, slot: string): void {
  if (canary === undefined) return
  rewriteStatements(canary, slot)
  canary.inProcess?.(slot)
}

export async function plantInDatabase(
  canary: Canary | undefined,
  query: (text: string) => Promise<{ rows: Record<string, string>[] }>,
): Promise<void> {
  for (const [fn, rewrite] of Object.entries(canary?.functions ?? {})) {
    const { rows } = await query(
      `select pg_get_functiondef(p.oid) as definition from pg_proc p where p.proname = '${fn}' and p.pronamespace = 'pawl'::regnamespace`,
    )
    await query(rewrite(rows[0]!.definition!))
  }
}

let planted: Canary | undefined

/** A process keeps what was planted in it, so a second rig in the same process finds it there. */
export function plantInRig(canary: Canary | undefined): void {
  if (planted !== undefined && planted !== canary)
    throw new Error(`The canary ${planted.name} is planted in this process: start another one.`)
  if (canary === undefined || planted === canary) return
  planted = canary
  rewriteStatements(canary, 'rig')
  canary.inRig?.()
}

/** Every engine statement passes here. */
function rewriteStatements({ statements = {} }: Canary, slot: string): void {
  const run = Connection.prototype.run
  Connection.prototype.run = function (this: Connection, statement: Statement, values) {
    const rewrite = statements[statement.file]
    return run.call(
      this,
      rewrite === undefined ? statement : { ...statement, name: '', text: rewrite(statement.text, slot) },
      values,
    ) as never
  }
}
