// How every run ends: heal, let everything come to rest, stop in order, read, check.

import { check, type Violation } from './checker.ts'
import { type Facts, readFacts } from './facts.ts'
import type { Rig } from './rig.ts'

/** After healing: ended leases, backoffs, suspects one by one, and processes that a poison job still kills. */
const restMs = 45_000

export interface Finished {
  readonly facts: Facts
  readonly checks: Record<string, number>
  readonly violations: Violation[]
  readonly restedMs: number
}

export async function finish(rig: Rig, options: { restMs?: number } = {}): Promise<Finished> {
  await rig.heal()
  const began = performance.now()
  const isDrained = await rig.until(async () => {
    const [row] = await rig.query<{ live: number }>("select count(*)::integer as live from pawl.job where state <> 'dead'")
    return row!.live === 0
  }, options.restMs ?? restMs)
  const restedMs = Math.round(performance.now() - began)
  const notStopped = await rig.stopWorkers()
  const facts = await readFacts(rig, { isDrained, notStopped })
  const { checks, violations } = check(facts)
  const indexes = await checkIndexes(rig, violations)
  return { facts, checks: { ...checks, 'indexes sound': indexes }, violations, restedMs }
}

/** The server was killed in the middle of things: its indexes must still agree with their tables. */
async function checkIndexes(rig: Rig, violations: Violation[]): Promise<number> {
  await rig.query('create extension if not exists amcheck')
  const indexes = await rig.query<{ name: string }>(
    `select i.indexrelid::regclass::text as name
     from pg_index i
     join pg_class c on c.oid = i.indexrelid and c.relkind = 'i'
     join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
     join pg_am a on a.oid = c.relam and a.amname = 'btree'`,
  )
  for (const { name } of indexes) {
    try {
      await rig.admin.query('select bt_index_check($1::regclass, true)', [name])
    } catch (error) {
      violations.push({ check: 'indexes sound', message: `${name}: ${String(error)}` })
    }
  }
  return indexes.length
}
