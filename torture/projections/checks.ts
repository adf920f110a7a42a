// The checks of projections. Each is a promise as a program over the facts: how much it looked at, and what it found against the promise.

import { calledAtLeastOnce, calledInOrder } from '../events/call-checks.ts'
import { allAtRest, fencesNeverRepeat, movedByHolder } from '../events/cursor-checks.ts'
import { type Check, type Find, groupBy, type LogFacts, type Logged, type Rows, shardOf } from '../events/facts.ts'
import { foldedName, handedName, shardedName } from './handlers.ts'
import { type Observed, observe } from './observe.ts'

export interface ProjectionFacts extends LogFacts {
  /** The tables of each generation that is there. */
  readonly folds: readonly {
    readonly generation: number
    readonly balances: readonly { readonly key: string; readonly events: number; readonly total: number }[]
    readonly journal: readonly number[]
  }[]
  readonly copied: ReadonlyMap<string, number>
  readonly refreshed: readonly { readonly key: string; readonly n: number }[]
  readonly last: readonly Observed[]
}

export const checks = {
  'state is the fold': stateIsFold,
  'applied once, in order': appliedOnce,
  'checkpoint and state agree': checkpointsAgree,
  'moved by its holder': movedByHolder,
  'fences never repeat': fencesNeverRepeat,
  'seen and not too early': seenInTime,
  'copied in the end': copiedInTheEnd,
  'let out once': letOutOnce,
  'handed over in order': (facts, find) => {
    calledAtLeastOnce(facts, find)
    return calledInOrder(handedName, facts, find)
  },
  'all at rest': allAtRest,
} satisfies Record<string, Check<ProjectionFacts>>

export type CheckName = keyof typeof checks

export async function readProjectionFacts(rows: Rows): Promise<Omit<ProjectionFacts, keyof LogFacts>> {
  const generations = await rows<{ generation: number; is_live: boolean }>(
    `select c.generation, p.live_generation = c.generation as is_live
     from pawl.cursor_at c join pawl.projection p on p.name = c.name where c.name = '${foldedName}'`,
  )
  const folds: ProjectionFacts['folds'][number][] = []
  for (const { generation, is_live } of generations) {
    const suffix = is_live ? '' : `_g${generation}`
    const journal = await rows<{ position: number }>(`select position::float8 as position from torture.journal${suffix}`)
    folds.push({
      generation,
      balances: await rows(`select key, events::float8 as events, total::float8 as total from torture.balance${suffix}`),
      journal: journal.map(({ position }) => position),
    })
  }
  const copied = await rows<{ key: string; n: number }>('select key, n::float8 as n from torture.copied')
  return {
    folds,
    copied: new Map(copied.map(({ key, n }) => [key, n])),
    refreshed: await rows('select key, n::float8 as n from torture.refreshed order by id'),
    last: await observe(rows),
  }
}

/** The tables of every generation are what its events add up to, each of them in both. */
function stateIsFold({ log, folds, isDrained }: ProjectionFacts, find: Find): number {
  if (!isDrained) return 0
  const wanted = new Map<string, { events: number; total: number }>()
  for (const { key, data } of log) {
    const sum = wanted.get(key) ?? { events: 0, total: 0 }
    wanted.set(key, { events: sum.events + 1, total: sum.total + (data.amount ?? 0) })
  }
  for (const { generation, balances, journal } of folds) {
    const found = new Map(balances.map((row) => [row.key, row]))
    for (const [key, { events, total }] of wanted) {
      const row = found.get(key)
      if (row?.events !== events || row.total !== total)
        find(
          `generation ${generation}, key ${key}: ${events} events add up to ${total}, and the table has ${row?.events} and ${row?.total}`,
        )
    }
    for (const key of found.keys()) if (!wanted.has(key)) find(`generation ${generation} has key ${key}, which has no event`)
    const positions = new Set(journal)
    if (positions.size !== log.length || journal.length !== log.length)
      find(`the journal of generation ${generation} has ${journal.length} rows of ${positions.size} of ${log.length} events`)
  }
  return folds.length * log.length
}

/** Of each key the events of the log, one after the other; all of them, unless the generation was retired. */
function appliedOnce({ log, applied, folds, isDrained }: ProjectionFacts, find: Find): number {
  const byKey = groupBy(log, ({ key }) => key)
  const there = new Set([...folds.map(({ generation }) => `${foldedName} ${generation}`), `${shardedName} 1`])
  const groups = groupBy(applied, ({ name, generation }) => `${name} ${generation}`)
  for (const [which, rows] of groups) {
    const found = groupBy(rows, ({ key }) => key)
    for (const [key, events] of byKey) {
      const list = found.get(key) ?? []
      const wrong = list.findIndex(({ position }, index) => position !== events[index]?.position)
      if (wrong >= 0) {
        const { position, proc, xid } = list[wrong]!
        find(
          `${which}, key ${key}: event ${position} was applied by ${proc} in ${xid} as number ${wrong + 1}, and the log has ${events[wrong]?.position ?? 'nothing'} there`,
        )
      } else if (isDrained && there.has(which) && list.length < events.length)
        find(`${which}, key ${key}: event ${events[list.length]!.position} was never applied`)
    }
    for (const key of found.keys()) if (!byKey.has(key)) find(`${which}: key ${key} was applied, and has no event`)
  }
  return applied.length
}

/** At any moment a projection has applied, or parked, exactly the events up to its positions; in all of its tables. */
function checkpointsAgree({ log, entries, last, shards }: ProjectionFacts, find: Find): number {
  const looks = [...entries.filter(({ op }) => op === 'observed').map((entry) => entry as unknown as Observed), ...last]
  const counts = new Map<string, (position: number) => number>()
  const upTo = (name: string, shard: number, position: number) => {
    const of = shards.get(name) ?? 1
    const key = `${of} ${shard}`
    let count = counts.get(key)
    if (count === undefined) {
      count = counter(log.filter((event) => event.id !== null && shardOf(event, of) === shard))
      counts.set(key, count)
    }
    return count(position)
  }
  for (const { name, generation, positions, applied, parked, balanced, journalled } of looks) {
    const wanted = positions.reduce((sum, position, shard) => sum + upTo(name, shard, position), 0) - parked
    const where = `${name} generation ${generation} at ${positions.join(', ')}, with ${parked} events parked`
    if (applied !== wanted) find(`${where}: ${applied} events are applied, and ${wanted} should be`)
    if (balanced !== null && balanced !== applied) find(`${where}: one table has ${balanced} events, and ${applied} are applied`)
    if (journalled !== null && journalled !== applied)
      find(`${where}: the other table has ${journalled} events, and ${applied} are applied`)
  }
  return looks.length
}

/** How many of them are up to a position. */
function counter(events: readonly Logged[]): (position: number) => number {
  const positions = events.map(({ position }) => position)
  return (position) => {
    let low = 0
    let high = positions.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (positions[middle]! <= position) low = middle + 1
      else high = middle
    }
    return low
  }
}

function seenInTime({ entries }: ProjectionFacts, find: Find): number {
  const seen = entries.filter(({ op, ph }) => op === 'seen' && ph === 'ok')
  for (const { name, key, n, isThere } of seen)
    if (!isThere) find(`${String(name)} was said to have applied number ${String(n)} of ${String(key)}, and had not`)
  return seen.length
}

/** Every key has its current state in the end, and no refresh wrote an older one than the one before. */
function copiedInTheEnd({ counters, copied, refreshed, isDrained }: ProjectionFacts, find: Find): number {
  for (const [key, n] of counters)
    if (isDrained && n > 0 && copied.get(key) !== n)
      find(`key ${key} was written ${n} times, and its copy says ${copied.get(key)}`)
  for (const [key, list] of groupBy(refreshed, (row) => row.key)) {
    const back = list.findIndex(({ n }, index) => index > 0 && n < list[index - 1]!.n)
    if (back > 0) find(`a refresh of ${key} wrote ${list[back]!.n} after ${list[back - 1]!.n}`)
  }
  return refreshed.length
}

/** What a handler adds for the outside comes of each event once, however often it is replayed in another generation. */
function letOutOnce({ log, isDrained }: ProjectionFacts, find: Find): number {
  const echoes = groupBy(
    log.filter(({ type }) => type === 'Echoed'),
    ({ data }) => String(data.of),
  )
  const asked = log.filter(({ data }) => data?.echo)
  for (const { position } of asked) {
    const count = echoes.get(String(position))?.length ?? 0
    if (count > 1 || (isDrained && count === 0)) find(`event ${position} was answered ${count} times`)
  }
  return asked.length
}
