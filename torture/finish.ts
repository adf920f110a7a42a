// How every run ends: heal, let everything come to rest, stop in order, read, check.

import { type Entry, readHistory } from './history.ts'
import type { Rig } from './rig.ts'
import type { Judged, Violation } from './scenario.ts'

/** After healing: ended leases, backoffs, suspects one by one, and processes that a poison job still kills; on a machine that does other things too. */
const restMs = 90_000

export interface Finished {
  readonly judged: Judged
  readonly restedMs: number
}

export async function finish(rig: Rig, options: { restMs?: number } = {}): Promise<Finished> {
  await rig.heal()
  const began = performance.now()
  const isDrained = await rig.until(() => rig.scenario.isAtRest(rig), options.restMs ?? restMs)
  const restedMs = Math.round(performance.now() - began)
  const late = readHistory(rig.dir, 'rig').filter((entry) => entry.op === 'late stop')
  const notStopped = [...late.map((entry) => String(entry.slot)), ...(await rig.stopProcesses())]
  const judged = await rig.scenario.judge(rig, { isDrained, notStopped })
  const indexes = await checkIndexes(rig)
  const exits = checkExits(judged.entries)
  return {
    judged: {
      ...judged,
      checks: { ...judged.checks, 'no process fails': exits.looked, 'indexes sound': indexes.looked },
      violations: [...judged.violations, ...exits.violations, ...indexes.violations],
    },
    restedMs,
  }
}

/** What every scenario is checked for, beside its own. */
export type GeneralCheckName = 'no process fails' | 'indexes sound'

interface Checked {
  readonly looked: number
  readonly violations: readonly Violation<GeneralCheckName>[]
}

/** Processes are killed and told to stop; one that ends by itself with an error has a bug. */
function checkExits(entries: readonly Entry[]): Checked {
  const exits = entries.filter((entry) => entry.op === 'exit')
  const failed = exits.filter((entry) => entry.code !== 0 && entry.code !== null)
  return {
    looked: exits.length,
    violations: failed.map((entry) => ({
      check: 'no process fails',
      message: `${String(entry.slot)}.${String(entry.start)} ended by itself with code ${String(entry.code)}`,
    })),
  }
}

/** The server was killed in the middle of things: its indexes must still agree with their tables. */
async function checkIndexes(rig: Rig): Promise<Checked> {
  await rig.query('create extension if not exists amcheck')
  const indexes = await rig.query<{ name: string }>(
    `select i.indexrelid::regclass::text as name
     from pg_index i
     join pg_class c on c.oid = i.indexrelid and c.relkind = 'i'
     join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
     join pg_am a on a.oid = c.relam and a.amname = 'btree'`,
  )
  const violations: Violation<GeneralCheckName>[] = []
  for (const { name } of indexes) {
    try {
      await rig.admin.query('select bt_index_check($1::regclass, true)', [name])
    } catch (error) {
      violations.push({ check: 'indexes sound', message: `${name}: ${String(error)}` })
    }
  }
  return { looked: indexes.length, violations }
}
