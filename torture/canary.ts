// Known bugs, planted on purpose. A checker that does not find them would not find the real ones either. Product code knows nothing of
// them: statements are rewritten on their way to the database in the process under test, functions are replaced in its database.

import { existsSync, readdirSync } from 'node:fs'
import pg from 'pg'
import { Connection } from '../packages/pawl/src/db/driver.ts'
import { type Statement, statement } from '../packages/pawl/src/db/statement.ts'

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
  /** By statement file; 'records/fail' where several capabilities have a file of that name. */
  readonly statements?: Readonly<Record<string, (text: string, slot: string) => string>>
  /** SQL functions, by name. */
  readonly functions?: Readonly<Record<string, (definition: string) => string>>
  /** SQL that is run in its database before anything else. */
  readonly schema?: readonly string[]
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
  for (const text of canary?.schema ?? []) await query(text)
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

function rewriteStatements({ statements = {} }: Canary, slot: string): void {
  // Every statement on an engine's own connection passes here.
  const run = Connection.prototype.run
  Connection.prototype.run = function (this: Connection, sent: Statement, values) {
    const rewrite = statements[sent.file]
    return run.call(this, rewrite === undefined ? sent : { ...sent, name: '', text: rewrite(sent.text, slot) }, values) as never
  }
  const rewrites = new Map(
    Object.entries(statements).flatMap(([file, rewrite]) => sentTexts(file).map((text) => [text, rewrite] as const)),
  )
  if (rewrites.size > 0) rewriteTexts((text) => rewrites.get(text)?.(text, slot))
}

/** What runs in a transaction or in a pool has only its text, and that tells which file it is. */
function rewriteTexts(rewritten: (text: string) => string | undefined): void {
  const query = pg.Client.prototype.query as (...args: unknown[]) => unknown
  const changed = (first: unknown): unknown => {
    if (typeof first === 'string') return rewritten(first) ?? first
    const sent = first as { text?: unknown; name?: unknown; submit?: unknown } | null
    const text = typeof sent?.text === 'string' ? rewritten(sent.text) : undefined
    if (text === undefined) return first
    // A query object of the driver's own is sent as it is; a plain one is copied, without the name of the prepared original.
    return typeof sent!.submit === 'function' ? Object.assign(sent!, { text }) : { ...sent, text, name: undefined }
  }
  pg.Client.prototype.query = function (this: pg.Client, first: unknown, ...rest: unknown[]) {
    return query.call(this, changed(first), ...rest)
  } as never
}

/** Compiled processes have the SQL beside them; see build.ts. */
const sources = new URL(import.meta.url.endsWith('.ts') ? '../packages/pawl/src/' : './src/', import.meta.url)

/** The statements of this name as they are sent, of whichever capability has one. */
export function sentTexts(file: string): string[] {
  const [name, owner] = file.split('/').reverse()
  return readdirSync(sources)
    .filter((folder) => owner === undefined || folder === owner)
    .filter((folder) => existsSync(new URL(`${folder}/sql/${name}.sql`, sources)))
    .map((folder) => statement(new URL(`${folder}/any.ts`, sources).href, name!).text)
}
