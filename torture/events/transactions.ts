// What a writer does in one transaction, drawn from the seed: which keys, how many events of each, by which way, for how long it stays
// open, and how it ends.

import type { Random } from '../random.ts'

/**
 * `append`: one call per key with the caller's transaction; `bulk`: the same with hundreds of events; `sql`: pawl.append() in plain SQL; `insert`:
 * an insert by an application that knows the table only; `trigger`: a trigger of the application's own; `plain`: without a transaction.
 */
export const ways = ['append', 'bulk', 'sql', 'insert', 'trigger', 'plain'] as const
export type Way = (typeof ways)[number]

export interface Transaction {
  /** Names it in every record. */
  readonly batch: string
  readonly way: Way
  /** In this order, which is the same for all writers. */
  readonly writes: readonly { readonly key: string; readonly count: number }[]
  readonly ending: 'commit' | 'rollback' | 'prepare'
  /** How long it stays open before it ends. */
  readonly openMs: number
  /** It has its id before it has its keys, so that ids do not come in the order of commits. */
  readonly isEarly: boolean
  /** So many events are appended in a savepoint that is rolled back. */
  readonly ghosts: number
  /** Handlers refuse its first event until the key is mended. */
  readonly isBad: boolean
}

export interface EventData {
  readonly b: string
  readonly i: number
  /** Its number within its key: the true order. */
  readonly n?: number
  readonly amount: number
  readonly bad?: boolean
  /** A live projection answers it with an event of its own. */
  readonly echo?: boolean
  readonly ghost?: boolean
}

export const keys: readonly string[] = Array.from({ length: 12 }, (_, index) => `k${index + 1}`)

const weights: readonly [Way, number][] = [
  ['append', 6],
  ['sql', 4],
  ['insert', 3],
  ['trigger', 2],
  ['plain', 3],
  ['bulk', 0.3],
]

export function drawTransaction(random: Random, batch: string): Transaction {
  const way = weighted(random)
  const chosen = random.shuffled(keys).slice(0, way === 'bulk' ? 1 : random.pick([1, 1, 1, 2, 3]))
  const writes = [...chosen]
    .sort()
    .map((key) => ({ key, count: way === 'bulk' ? random.whole(60, 250) : random.pick([1, 1, 2, 4]) }))
  const isLong = random.chance(0.1)
  return {
    batch,
    way,
    writes,
    ending: random.chance(0.15) ? 'rollback' : random.chance(0.06) ? 'prepare' : 'commit',
    openMs: isLong ? random.whole(200, 1200) : random.chance(0.5) ? random.whole(1, 30) : 0,
    isEarly: random.chance(0.5),
    ghosts: random.chance(0.1) ? random.whole(1, 3) : 0,
    isBad: random.chance(0.1),
  }
}

/** A transaction of a story: committed at once, unless told otherwise. */
export function transaction(batch: string, key: string, count: number, more: Partial<Transaction> = {}): Transaction {
  const writes = [{ key, count }]
  return { batch, way: 'append', writes, ending: 'commit', openMs: 0, isEarly: false, ghosts: 0, isBad: false, ...more }
}

function weighted(random: Random): Way {
  let left = random.next() * weights.reduce((sum, [, weight]) => sum + weight, 0)
  for (const [way, weight] of weights) {
    left -= weight
    if (left < 0) return way
  }
  return 'append'
}
