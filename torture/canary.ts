// Known bugs, planted on purpose: a check that does not find them would not find real ones. The library has no switch for them. Statements
// are rewritten on their way to the database in the process under test, functions are replaced in its database.

import { existsSync, readdirSync } from 'node:fs'
import pg from 'pg'
import { sourcesIn, statement } from '../packages/pawl/src/db/statement.ts'
import type { ChildOptions } from './process.ts'

export interface Bug<Check extends string = string> {
  /** The check that must find it. A run that is late, or broken in another way, has not found it. */
  readonly caughtBy: Check
  /** Rewrites by statement file; 'records/fail' where several folders have a file of that name. */
  readonly statements?: Readonly<Record<string, (text: string, slot: string) => string>>
  /** Rewrites of SQL functions, by name. */
  readonly functions?: Readonly<Record<string, (definition: string) => string>>
  /** SQL that runs in the database before anything else. */
  readonly schema?: readonly string[]
  /** Anything else, in a process under test. */
  inProcess?(options: ChildOptions): void
  /** Anything else, in the rig's own process, which produces and operates. */
  inRig?(): void
}

export interface Canary extends Bug {
  readonly name: string
  /** The story in which it shows for certain. */
  readonly story: string
}

type Statements = NonNullable<Bug['statements']>

/** A bug in statements alone. */
export function rewrites<Check extends string>(caughtBy: Check, statements: Statements): Bug<Check> {
  return { caughtBy, statements }
}

/** The same rewrite of several statements, which are words of one string. */
export function alike(files: string, rewrite: Statements[string]): Statements {
  return Object.fromEntries(files.split(' ').map((file) => [file, rewrite]))
}

/** A bug in methods of one class alone. */
export function replaces<Check extends string, T extends object>(caughtBy: Check, prototype: T, methods: Partial<T>): Bug<Check> {
  return { caughtBy, inProcess: () => void Object.assign(prototype, methods) }
}

/** Fails when the SQL has changed: a rewrite that changes nothing would be a bug that is not planted. */
export function swap(from: string | RegExp, to: string): (text: string) => string {
  return (text) => {
    const changed = text.replace(from, to)
    if (changed === text) throw new Error(`A canary found nothing to rewrite: ${from} is not in\n${text}`)
    return changed
  }
}

export function plantInProcess(canary: Canary | undefined, options: ChildOptions): void {
  if (canary === undefined) return
  rewriteStatements(canary, options.slot)
  canary.inProcess?.(options)
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
  const rewrites = new Map(
    Object.entries(statements).flatMap(([file, rewrite]) => sentTexts(file).map((text) => [text, rewrite] as const)),
  )
  if (rewrites.size > 0) rewriteTexts((text) => rewrites.get(text)?.(text, slot))
}

/** Every statement passes here as a string; its `-- name:` says which one it is. */
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

/** A compiled process has the SQL beside it. */
const sources = new URL(import.meta.url.endsWith('.ts') ? '../packages/pawl/src/' : './src/', import.meta.url)

/** The statements of this name as they are sent, of every folder that has one. */
export function sentTexts(file: string): string[] {
  const [name, owner] = file.split('/').reverse()
  return readdirSync(sources)
    .filter((folder) => owner === undefined || folder === owner)
    .filter((folder) => existsSync(new URL(`${folder}/sql/`, sources)))
    .filter((folder) => sourcesIn(new URL(`${folder}/sql/`, sources)).has(name!))
    .map((folder) => statement(new URL(`${folder}/any.ts`, sources).href, name!).text)
}

/** Sends one statement on a connection of its own, which commits at once. */
export async function sendOutside(url: string, text: string, values: readonly unknown[] = []): Promise<pg.QueryResult> {
  const client = new pg.Client({ connectionString: url, application_name: 'canary' })
  await client.connect()
  try {
    return await client.query(text, [...values])
  } finally {
    await client.end()
  }
}
