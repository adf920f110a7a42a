// A database of its own for each test file or test, cloned from the migrated template; and small things that tests wait with.

import { randomBytes } from 'node:crypto'
import { inspect } from 'node:util'
import { createPawl, type Pawl, type PawlOptions, silentLogger, type Worker } from 'pawl'
import { endLease, keeperTesting } from 'pawl/testing'
import pg from 'pg'
import { inject } from 'vitest'

export interface TestDatabase {
  readonly url: string
  readonly name: string
  /** Plain connections of the test itself. */
  readonly pool: pg.Pool
  query<Row = Record<string, unknown>>(text: string, values?: unknown[]): Promise<Row[]>
  /** A Pawl on this database, closed with it. */
  pawl(options?: Partial<PawlOptions>): Pawl
  /** Drops the database, after its Pawls' workers have stopped: one that stops later waits seconds for a server that is gone. */
  drop(): Promise<void>
}

export async function createDatabase(options: { isEmpty?: boolean } = {}): Promise<TestDatabase> {
  const serverUrl = inject('serverUrl')
  keeperTesting.compiledThread = inject('programs')['keeper-thread']
  const name = `t_${randomBytes(6).toString('hex')}`
  const admin = (text: string) => onServer(serverUrl, text)
  await admin(`create database ${name}${options.isEmpty ? '' : ' template pawl_template'}`)
  const url = withDatabase(serverUrl, name)
  const pool = new pg.Pool({ connectionString: url, max: 20 })
  pool.on('error', () => undefined)
  const pawls: Pawl[] = []
  return {
    url,
    name,
    pool,
    async query<Row>(text: string, values: unknown[] = []) {
      return (await pool.query(text, values)).rows as Row[]
    },
    pawl(more = {}) {
      const pawl = createPawl({ databaseUrl: url, logger: silentLogger, ...more })
      pawls.push(pawl)
      return pawl
    },
    async drop() {
      await Promise.all(pawls.flatMap((pawl) => workersOf.get(pawl) ?? []).map((worker) => worker.stop({ grace: 5000 })))
      await Promise.all(pawls.map((pawl) => pawl.close()))
      await pool.end()
      await admin(`drop database if exists ${name} with (force)`)
    },
  }
}

const workersOf = new WeakMap<Pawl, Worker[]>()

/** For the workers of tests whose afterEach drops the database: vitest runs it before what onTestFinished was given. */
export function stopBeforeDrop(pawl: Pawl, worker: Worker): void {
  workersOf.set(pawl, [...(workersOf.get(pawl) ?? []), worker])
}

async function onServer(serverUrl: string, text: string): Promise<void> {
  const client = new pg.Client({ connectionString: withDatabase(serverUrl, 'postgres') })
  await client.connect()
  try {
    await client.query(text)
  } finally {
    await client.end()
  }
}

export function withDatabase(url: string, name: string): string {
  const changed = new URL(url)
  changed.pathname = `/${name}`
  return changed.href
}

type Look<T> = () => Promise<T> | T

/**
 * Waits for an event, never for time: looks often until it sees something, or what `holds` says, and fails with what it last saw. A look that
 * answers only true or false can tell no more; one that returns what it read, with `holds`, can.
 */
export function until<T>(what: string, look: Look<T | null | undefined | false>, timeoutMs?: number): Promise<T>
export function until<T>(what: string, look: Look<T>, holds: (seen: T) => boolean, timeoutMs?: number): Promise<T>
export async function until<T>(what: string, look: Look<T>, ...rest: unknown[]): Promise<T> {
  const holds = (typeof rest[0] === 'function' ? rest.shift() : isThere) as (seen: T) => boolean
  const timeoutMs = (rest[0] as number | undefined) ?? 20_000
  const deadline = performance.now() + timeoutMs
  for (;;) {
    const seen = await look()
    if (holds(seen)) return seen
    if (performance.now() > deadline) throw new Error(`Waited ${timeoutMs} ms in vain until ${what}; last seen: ${inspect(seen)}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

/** Null is what PostgreSQL says of rows that are not there yet. */
const isThere = (seen: unknown) => seen !== undefined && seen !== null && seen !== false

/**
 * What a process held that died or was stopped is free now, and not when its lease ends: for tests in which leases are so long that no busy
 * machine ends one. How a death is noticed is shown elsewhere.
 */
export async function endLeasesOf(db: TestDatabase, process: { readonly pid: number }): Promise<void> {
  for (const { id } of await db.query<{ id: number }>('select id from pawl.worker_process where pid = $1', [process.pid]))
    await endLease(db.pool, id)
}

/** A promise with its ends in hand. */
export function deferred<T = void>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (error: unknown) => void } {
  let resolve!: (value: T) => void
  let reject!: (error: unknown) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  return { promise, resolve, reject }
}
