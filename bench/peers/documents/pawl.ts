// Documents of Pawl with its default settings.

import { createPawl, type Pawl, PawlError } from 'pawl'
import pg from 'pg'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Sample } from '../../harness/rounds.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { scattered, times } from '../records/times.ts'
import { type Stoppable, startWorker } from '../worker.ts'
import { counts, defineTypes, nth, offering, school, sectionKey, session, type TypeName } from './bodies.ts'
import { type Inserts, insertWhile, renamesPer, type Shape } from './loads.ts'

const postMax = 10_000
const pageReads = 300

export function open(): Peer {
  let pawl: Pawl
  let pool: pg.Pool
  let worker: Stoppable | undefined
  /** Of the parents that are renamed: their keys now. */
  const keys = new Map<string, number>()
  const uuids = new Map<string, string>()
  let lastKey = 1_000_000

  async function post(type: TypeName, bodies: readonly unknown[]): Promise<void> {
    for (let from = 0; from < bodies.length; from += postMax) {
      const outcomes = await pawl.documents.postMany(type, bodies.slice(from, from + postMax))
      for (const outcome of outcomes) if (!outcome.ok) throw outcome.error
    }
  }

  /** A school with sessions, and each of these with offerings. */
  async function plant(name: string, { sessions, offerings }: Shape): Promise<void> {
    const schoolId = ++lastKey
    keys.set(name, schoolId)
    uuids.set(name, (await pawl.documents.post('School', school(schoolId))).uuid)
    const names = Array.from({ length: sessions }, (_, n) => `s${n}`)
    await post(
      'Session',
      names.map((sessionName) => session(sessionName, schoolId)),
    )
    for (let n = 0; n < offerings; n++)
      await post(
        'Offering',
        names.map((sessionName) => offering(`c${n}`, sessionName, schoolId)),
      )
  }

  /** Milliseconds of the PUT. */
  async function rename(name: string): Promise<number> {
    const schoolId = ++lastKey
    const from = now()
    await pawl.documents.put('School', uuids.get(name)!, school(schoolId))
    const ms = now() - from
    keys.set(name, schoolId)
    return ms
  }

  /** The PUT in a transaction that is rolled back: rows written and pages read. */
  async function costOfRename(name: string): Promise<Sample> {
    const client = await pool.connect()
    try {
      await client.query('begin')
      const costs = async () => (await client.query<{ rows: number; pages: number }>(costSql)).rows[0]!
      const put = () => pawl.documents.put('School', uuids.get(name)!, school(++lastKey), { tx: client })
      // The first ones of a connection read the catalog and plan.
      for (let n = 0; n < 10; n++) await put()
      const before = await costs()
      await put()
      const after = await costs()
      return { rows: after.rows - before.rows, pages: after.pages - before.pages }
    } finally {
      await client.query('rollback')
      client.release()
    }
  }

  /** The log is read, and nothing waits for a refresh. */
  async function settled(): Promise<void> {
    for (;;) {
      const { rows } = await pool.query<{ is_so: boolean }>(settledSql)
      if (rows[0]!.is_so) return
      await pause(20)
    }
  }

  /** From the PUT until all stored bodies have the new key. */
  async function refresh(name: string): Promise<Sample> {
    const uuid = uuids.get(name)!
    const first = await pool.query<{ id: string }>(firstSql, [uuid])
    const from = now()
    const renamed = await rename(name)
    const done = [first.rows[0]!.id, keys.get(name)!]
    for (;;) {
      const { rows } = await pool.query<{ is_so: boolean }>({ name: 'refreshed', text: refreshedSql, values: done })
      if (rows[0]!.is_so) break
      await pause(5)
    }
    const value = now() - from
    const { rows } = await pool.query<{ old: number }>(oldSql, [keys.get(name)!])
    if (rows[0]!.old > 0) throw new Error(`${rows[0]!.old} documents have an old key`)
    return { value, renamed }
  }

  /** Offerings of one session, while it or another one is renamed in transactions that stay open for a while. */
  async function inserts(isControl: boolean, durationMs: number): Promise<Inserts> {
    await pawl.documents.post('School', school(1))
    const [parent, other] = [
      await pawl.documents.post('Session', session('p0', 1)),
      await pawl.documents.post('Session', session('o0', 1)),
    ]
    let current = 'p0'
    let renames = 0
    return insertWhile(durationMs, {
      async insert(n) {
        try {
          await pawl.documents.post('Offering', offering(`i${n}`, current, 1))
          return true
        } catch (error) {
          if (error instanceof PawlError && error.code === 'PAWL_REFERENCE_UNRESOLVED') return false
          throw error
        }
      },
      async rename() {
        const to = `${isControl ? 'o' : 'p'}${++renames}`
        const client = await pool.connect()
        try {
          await client.query('begin')
          await pawl.documents.put('Session', (isControl ? other : parent).uuid, session(to, 1), { tx: client })
          await pause(renamesPer.openMs)
          await client.query('commit')
        } finally {
          client.release()
        }
        if (!isControl) current = to
      },
    })
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
    plant,
    renames: async (names: readonly string[], count: number) => {
      const taken = new Map<string, number[]>(names.map((name) => [name, []]))
      for (let n = 0; n < count; n++) for (const name of names) taken.get(name)!.push(await rename(name))
      return [...taken]
    },
    costOfRename,
    async start() {
      worker = await startWorker(pawl, 'cursors')
      await settled()
    },
    refresh,
    settled,
    inserts,
    async fill(count: number) {
      await fillTargets(post)
      for (const type of ['Student', 'Enrollment', 'Offering', 'Section'] as const)
        await post(
          type,
          Array.from({ length: count }, (_, n) => nth[type](n)),
        )
    },
    /** The median of gets by key. */
    get: (count: number, calls: number) =>
      times(calls, async (n) => {
        const found = await pawl.documents.get('Section', sectionKey((n * 37) % count))
        if (found === undefined) throw new Error('a section was not found')
      }),
    async page(type: TypeName) {
      const places: string[] = ['0']
      for (let after: string | null = '0'; after !== null; ) {
        const page: { next: string | null } = await pawl.documents.list(type, { after, limit: 100 })
        if (page.next !== null) places.push(page.next)
        after = page.next
      }
      return times(pageReads, async (n) => {
        const { items } = await pawl.documents.list(type, { after: scattered(places, n), limit: 100 })
        if (items.length !== 100) throw new Error(`a page has ${items.length} documents`)
      })
    },
    async bulk(count: number) {
      await fillTargets(post)
      const bodies = Array.from({ length: count }, (_, n) => nth.Offering(n))
      const from = now()
      await post('Offering', bodies)
      return { value: now() - from }
    },
  }

  return {
    async prepare({ url, connections }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      defineTypes(pawl.documents)
      pool = new pg.Pool({ connectionString: url, max: connections })
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    async close() {
      await worker?.stop()
      await pawl.close()
      await pool.end()
    },
  }
}

async function fillTargets(post: (type: TypeName, bodies: readonly unknown[]) => Promise<void>): Promise<void> {
  for (const [type, count] of [
    ['School', counts.schools],
    ['Session', counts.sessions],
    ['Course', counts.courses],
  ] as const)
    await post(
      type,
      Array.from({ length: count }, (_, n) => nth[type](n)),
    )
}

const costSql = `select sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid))::integer as rows,
    sum(pg_stat_get_xact_blocks_fetched(c.oid))::integer as pages
  from pg_class c where c.relnamespace = 'pawl'::regnamespace and c.relkind in ('r', 'i')`
const settledSql = `select not exists (select from pawl.dirty)
    and not exists (select from pawl.log_head h join pawl.event e on e.xid >= pg_snapshot_xmax(h.snapshot))
    and not exists (select from pawl.cursor_at c, pawl.sequencer s where c.position < s.position) as is_so`
const firstSql = `select min(r.from_id)::text as id from pawl.document d join pawl.document_ref r on r.tenant = d.tenant and r.to_id = d.id
  where d.tenant = '' and d.uuid = $1`
// The first dependent's transaction leaves marks for all others.
const refreshedSql = `select (select (d.body -> 'school' ->> 'schoolId')::bigint = $2::bigint from pawl.document d where d.tenant = '' and d.id = $1::bigint)
    and not exists (select from pawl.dirty) as is_so`
const oldSql = `select count(*)::integer as old
  from pawl.document_key k
  join pawl.document_ref r on r.tenant = k.tenant and r.to_id = k.document_id
  join pawl.document d on d.tenant = r.tenant and d.id = r.from_id
  left join pawl.document_ref q on q.tenant = r.tenant and q.to_id = r.from_id
  left join pawl.document g on g.tenant = q.tenant and g.id = q.from_id
  where k.type = 'School' and (k.parts ->> 'schoolId')::bigint = $1::bigint
    and ((d.body -> 'school' ->> 'schoolId')::bigint <> $1::bigint or (g.body -> 'session' ->> 'schoolId')::bigint <> $1::bigint)`
