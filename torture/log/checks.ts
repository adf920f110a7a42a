// The checks of the log and of what reads it.

import { createPawl, silentLogger } from 'pawl'
import { type Check, count, groupBy, type Judged, judged, type RunEnd, readFacts, told } from '../checks.ts'
import type { Entry } from '../history.ts'
import { type Change, changesOf, type Query } from '../recorder.ts'
import type { Rig } from '../rig.ts'
import { type EventData, eventsOf, names, type Observed, observe, tooFar } from './traffic.ts'

// ---- facts

/** Without an id the position has no event. */
interface Logged extends Record<'key' | 'type', string> {
  readonly position: number
  readonly id: string | null
  readonly data: EventData & { readonly t?: number; readonly of?: number }
  readonly bucket: number
}
type Applied = Record<'name' | 'id' | 'key' | 'proc' | 'xid', string> & Record<'generation' | 'position', number>
type Keyed = { readonly key: string; readonly n: number }

/** An update: both rows are there. */
type Update<Column extends string, Seen extends string> = Change<'name' | 'generation' | 'shard' | Column, Seen> & {
  readonly old: object
  readonly new: object
}

async function readLogFacts(rig: Rig, end: RunEnd) {
  const audit = await auditLog(rig)
  return readFacts(rig, end, async (rows) => {
    const updatesOf = async (table: string) =>
      (await changesOf(rows, table)).filter(({ old, new: now }) => old !== null && now !== null)
    const cursors = await rows<{ name: string; shards: number }>('select distinct name, shards from pawl.cursor')
    const numbers = async (table: string) => {
      const found = await rows<Keyed>(`select key, n::float8 as n from torture.${table}`)
      return new Map(found.map(({ key, n }) => [key, n]))
    }
    return {
      audit,
      log: await rows<Logged>('select * from torture.log order by position'),
      /** What committed. */
      wrote: await rows<Keyed & { batch: string; i: number }>('select batch, i, key, n::float8 as n from torture.wrote'),
      /** How often each key was written, and what its copy says. */
      counters: await numbers('counter'),
      copied: await numbers('copied'),
      answers: await rows<{ of: number }>("select (payload ->> 'of')::float8 as of from pawl.job where kind = 'answer'"),
      refreshed: await rows<Keyed>('select key, n::float8 as n from torture.refreshed order by id'),
      applied: await rows<Applied>(
        `select name, generation, position::float8 as position, event_id::text as id, key, proc, xid::text as xid
         from torture.applied a order by a.id`,
      ),
      /** Cursors that were taken or given back, with where they stood and what was parked; and every move of one, with its holder. */
      takes: (await updatesOf('cursor')) as Update<'fence' | 'holder', 'position' | 'done' | 'parked'>[],
      moves: (await updatesOf('cursor_position')) as Update<'position' | 'done', 'holder'>[],
      shards: new Map(cursors.map(({ name, shards }) => [name, shards])),
      folds: await readFolds(rows),
      last: await observe(rows),
      parkings: count(await changesOf(rows, 'parked_key'), ({ old }) => old === null),
    }
  })
}

type Facts = Awaited<ReturnType<typeof readLogFacts>>

/** The tables of every generation. */
async function readFolds(rows: Query) {
  const generations = await rows<{ generation: number; suffix: string }>(
    `select c.generation, case when p.live_generation = c.generation then '' else '_g' || c.generation end as suffix
     from pawl.cursor_at c join pawl.projection p on p.name = c.name where c.name = '${names.folded}'`,
  )
  const folds: { generation: number; balances: (Keyed & { total: number })[]; journal: { position: number }[] }[] = []
  for (const { generation, suffix } of generations) {
    const balances = `select key, events::float8 as n, total::float8 as total from torture.balance${suffix}`
    const journal = `select position::float8 as position from torture.journal${suffix}`
    folds.push({ generation, balances: await rows(balances), journal: await rows(journal) })
  }
  return folds
}

/** The audit that is shipped. */
async function auditLog({ database }: Rig) {
  const pawl = createPawl({ databaseUrl: database.url, applicationName: 'judge', logger: silentLogger })
  try {
    return await pawl.events.audit()
  } finally {
    await pawl.close()
  }
}

export async function judge(rig: Rig, end: RunEnd): Promise<Judged> {
  const facts = await readLogFacts(rig, end)
  const { entries, log, takes, moves, applied, refusals: refused, parkings: parked } = facts
  const takeovers = count(takes, ({ old, new: now }) => old.holder !== null && now.holder !== null && old.holder !== now.holder)
  const [calls, strangers, seen] = [told(entries, 'call', 'ok'), told(entries, 'stranger'), told(entries, 'seen', 'ok')].map(
    (list) => list.length,
  )
  const switches = told(entries, 'switched').filter(({ isEqual }) => isEqual).length
  return judged(checks, facts, {
    changes: takes.length + moves.length + applied.length,
    shown: { takeovers, refused, parked, strangers: strangers!, seen: seen! },
    more: { events: log.length, applied: applied.length, calls: calls!, switches },
  })
}

// ---- checks

export const checks = {
  /** An event is in the log, once, if and only if its transaction committed; and what was acknowledged has committed. */
  'committed and logged'({ log, wrote, counters, entries }, find) {
    const written = log.filter(({ id, type }) => id !== null && type === 'Written')
    const logged = groupBy(written, ({ data }) => `${data.b} ${data.i}`)
    const committed = new Map(wrote.map((row) => [`${row.batch} ${row.i}`, row]))
    for (const [event, { key, n }] of committed) {
      const times = logged.get(event)?.length ?? 0
      if (times !== 1) find(`event ${event} (number ${n} of ${key}) committed, and is in the log ${times} times`)
    }
    for (const [event, [first]] of logged) {
      const { data, position } = first!
      if (data.ghost) find(`event ${event} at position ${position} was rolled back with its savepoint`)
      else if (data.n !== undefined && !committed.has(event)) find(`event ${event} at position ${position} was never committed`)
    }
    // The counter of a key was raised in the same transactions: the numbers in the log are all that it has.
    for (const [key, n] of counters) {
      const found = count(written, (event) => event.key === key && event.data.n !== undefined)
      if (found !== n) find(`key ${key} was written ${n} times, and the log has ${found} of its events`)
    }
    const own = groupBy(wrote, ({ batch }) => batch)
    const plain = groupBy(written, ({ data }) => (data.n === undefined && !data.ghost ? data.b : undefined))
    for (const { batch, way, ph, count: asked } of entries.filter(({ op, ph }) => op === 'append' && ph !== 'invoke')) {
      const found = (way === 'plain' ? plain : own).get(String(batch))?.length ?? 0
      const text = `transaction ${batch} of ${asked} event(s) was answered ${ph}, and ${found} are there`
      if (ph === 'ok' ? found !== asked : ph === 'fail' && found > 0) find(text)
      if (ph === 'info' && found > 0 && found !== asked) find(`${text}: half of it`)
    }
    return committed.size + plain.size
  },

  /** 1, 2, 3 ... each with its event, as the shipped audit says too; and every reader was given an event at its position. */
  'dense positions'({ log, audit, entries, applied }, find) {
    if (!audit.isSound || audit.head !== log.length)
      find(`the audit of the log says ${JSON.stringify(audit)}, and it has ${log.length} positions`)
    const wrong = log.findIndex(({ position }, index) => position !== index + 1)
    if (wrong >= 0) find(`position ${wrong + 1} is missing: the next one is ${log[wrong]!.position}`)
    for (const { position, id } of log) if (id === null) find(`position ${position} has no event`)
    const idAt = new Map(log.map(({ position, id }) => [position, id]))
    const called = told(entries, 'call', 'invoke').map((entry) => ({ ...entry, name: names.sink }))
    const given = [...(called as unknown as Applied[]), ...applied]
    for (const { position, id, proc, name } of given)
      if (idAt.get(position) !== id)
        find(`${name} in ${proc} was given event ${id} at position ${position}, where the log has ${idAt.get(position)}`)
    return log.length + given.length
  },

  /** The number of an event was drawn under its key's row lock: positions follow it. */
  'order of each key'({ log }, find) {
    const numbered = log.filter(({ data }) => data?.n !== undefined || data?.t !== undefined)
    for (const [key, events] of groupBy(numbered, (event) => event.key)) {
      let last = -1
      for (const { position, data } of events) {
        const number = data.n ?? data.t! * 100 + data.i
        if (number <= last) find(`key ${key}: number ${number} is at position ${position}, after number ${last}`)
        last = number
      }
    }
    return numbered.length
  },

  'called at least once'({ log, entries, audit, isDrained }, find) {
    const ended = told(entries, 'call', 'ok')
    for (const [id, calls] of groupBy(ended, (call) => String(call.id))) {
      const used = new Set(calls.map(({ idempotencyKey }) => idempotencyKey))
      if (used.size > 1) find(`event ${id} was handed over under the keys ${[...used].join(' and ')}`)
    }
    const positions = new Set(ended.map(({ position }) => position))
    for (const { position, key } of log)
      if (isDrained && !positions.has(position))
        find(`event ${position} (${key}) was never handed over, and the log ends at ${audit.head}`)
    return log.length
  },

  /**
   * Under one fence the calls of a key are those of its events that were not acknowledged when the cursor was taken, in order, each begun after
   * the one before it ended, and each again only after it failed, parked or not.
   */
  'called in order'({ log, takes, entries, shards: shardsOf }, find) {
    const shards = shardsOf.get(names.sink) ?? 1
    const byPosition = new Map(log.map((event) => [event.position, event]))
    const byKey = groupBy(log, ({ id, key }) => (id === null ? undefined : key))
    const taken = groupBy(takes, ({ new: now }) => (now.name === names.sink ? now.fence : undefined))
    let looked = 0
    const told = entries.filter(({ op, name }) => op === 'call' || (op === 'acquired' && name === names.sink))
    for (const [proc, list] of groupBy(told, (entry) => entry.proc)) {
      const fences = new Map<number, string>()
      const calls: Call[] = []
      for (const entry of list) {
        if (entry.op === 'acquired') fences.set(Number(entry.shard), String(entry.fence))
        const event = entry.ph === 'invoke' ? byPosition.get(Number(entry.position)) : undefined
        if (event !== undefined) calls.push({ event, entry, fence: fences.get(shardOf(event, shards)) ?? '' })
      }
      looked += calls.length
      const ends = new Map(list.filter(({ ph }) => ph === 'ok' || ph === 'fail').map((entry) => [entry.call, entry]))
      for (const [fence, under] of groupBy(calls, (call) => call.fence)) {
        const seen = taken.get(fence)?.[0]?.seen
        if (seen === undefined) {
          find(`${proc} handed over event ${under[0]!.event.position} without holding the cursor`)
          continue
        }
        const isDone = rangesOf(seen.done)
        const parked = new Set((seen.parked ?? '').split(' ').map(Number))
        const isDue = ({ position }: Logged) => (position > Number(seen.position) && !isDone(position)) || parked.has(position)
        for (const [key, ofKey] of groupBy(under, ({ event }) => event.key)) {
          const due = byKey.get(key)!.filter(isDue)
          const wrong = firstOutOfOrder(due, ofKey, ends)
          if (wrong !== undefined) find(`${names.sink} in ${proc} under fence ${fence}, key ${key}: ${wrong}`)
        }
      }
    }
    return looked
  },

  /** Of every event one row, and of those that ask for it one event and one job. */
  'reacted once'({ log, applied, answers, isDrained }, find) {
    const rows = groupBy(applied, ({ name, position }) => (name === names.reaction ? String(position) : undefined))
    const events = groupBy(log, ({ type, data }) => (type === 'Echoed' ? String(data.of) : undefined))
    const jobs = groupBy(answers, ({ of }) => String(of))
    for (const { position, key, data } of log) {
      const at = String(position)
      const found = { row: rows.get(at), ...(data?.echo ? { event: events.get(at), job: jobs.get(at) } : {}) }
      for (const [what, list = []] of Object.entries(found))
        if (list.length > 1 || (isDrained && list.length === 0))
          find(`event ${position} (${key}) caused ${list.length} of one ${what}`)
    }
    return log.length
  },

  /** Every event of every transaction of the source, once; whatever was answered is there; and nothing after a gap. */
  'ingested once'({ log, entries }, find) {
    const mined = groupBy(log, ({ type, data }) => (type === 'Mined' ? `${data.t}/${data.i}` : undefined))
    for (const [id, list] of mined)
      if (list.length > 1)
        find(`event ${id} of the source is there ${list.length} times: ${list.map(({ position }) => position).join(', ')}`)
    const last = Math.max(0, ...[...mined.values()].map(([event]) => event!.data.t!))
    if (last >= tooFar) find(`transaction ${last} of the source was ingested, and what came before it was not`)
    const before = last >= tooFar ? [] : Array.from({ length: Math.max(0, last - 1) }, (_, index) => eventsOf(index + 1)).flat()
    for (const { id } of before) if (!mined.has(id)) find(`event ${id} of the source was never ingested, and later ones were`)
    const answered = told(entries, 'ingest', 'ok').flatMap(({ ids }) => ids as string[])
    for (const id of new Set(answered))
      if (!mined.has(id)) find(`event ${id} of the source was acknowledged, and is not in the log`)
    return mined.size
  },

  'waits for no stranger'({ entries }, find) {
    const looks = told(entries, 'stranger')
    for (const { xid, windows, isThere } of looks)
      if (!isThere)
        find(`${windows} windows of the sequencer after its commit transaction ${xid} had no position behind a stranger's`)
    return looks.length
  },

  /** The tables of every generation are what its events add up to, each of them in both. */
  'state is the fold'({ log, folds, isDrained }, find) {
    if (!isDrained) return 0
    const byKey = groupBy(log, ({ key }) => key)
    for (const { generation, balances, journal } of folds) {
      const found = new Map(balances.map((row) => [row.key, row]))
      for (const [key, events] of byKey) {
        const total = events.reduce((sum, { data }) => sum + (data.amount ?? 0), 0)
        const row = found.get(key)
        if (row?.n === events.length && row.total === total) continue
        const wanted = `${events.length} events add up to ${total}`
        find(`generation ${generation}, key ${key}: ${wanted}, and the table has ${row?.n} and ${row?.total}`)
      }
      for (const key of found.keys()) if (!byKey.has(key)) find(`generation ${generation} has key ${key}, which has no event`)
      const positions = new Set(journal.map(({ position }) => position))
      if (positions.size !== log.length || journal.length !== log.length)
        find(`the journal of generation ${generation} has ${journal.length} rows of ${positions.size} of ${log.length} events`)
    }
    return folds.length * log.length
  },

  /** Of each key the events of the log, one after the other; all of them, unless the generation was retired. */
  'applied once, in order'({ log, applied, folds, isDrained }, find) {
    const byKey = groupBy(log, ({ key }) => key)
    const there = new Set([
      ...folds.map(({ generation }) => `${names.folded} ${generation}`),
      `${names.sharded} 1`,
      `${names.reaction} 1`,
    ])
    for (const [which, rows] of groupBy(applied, ({ name, generation }) => `${name} ${generation}`)) {
      const found = groupBy(rows, ({ key }) => key)
      for (const [key, events] of byKey) {
        const list = found.get(key) ?? []
        const wrong = list.findIndex(({ position }, index) => position !== events[index]?.position)
        if (wrong >= 0) {
          const { position, proc, xid } = list[wrong]!
          const should = events[wrong]?.position ?? 'nothing'
          const by = `by ${proc} in ${xid}`
          find(`${which}, key ${key}: event ${position} was applied ${by} as number ${wrong + 1}, where the log has ${should}`)
        } else if (isDrained && there.has(which) && list.length < events.length)
          find(`${which}, key ${key}: event ${events[list.length]!.position} was never applied`)
      }
      for (const key of found.keys()) if (!byKey.has(key)) find(`${which}: key ${key} was applied, and has no event`)
    }
    return applied.length
  },

  /** At any moment a projection has applied, or parked, exactly the events up to its positions; in all of its tables. */
  'checkpoint and state agree'({ log, entries, last, shards }, find) {
    const looks = [...told(entries, 'observed').map((entry) => entry as unknown as Observed), ...last]
    /** By number of shards: how many events each shard has up to each position. */
    const upTo = new Map<number, number[][]>()
    for (const of of new Set([1, ...shards.values()])) {
      const counts = Array.from({ length: of }, () => [0])
      for (const event of log) {
        const at = event.id === null ? -1 : shardOf(event, of)
        for (const [shard, list] of counts.entries()) list[event.position] = list[event.position - 1]! + (shard === at ? 1 : 0)
      }
      upTo.set(of, counts)
    }
    for (const { name, generation, positions, applied, parked, balanced, journalled } of looks) {
      const counts = upTo.get(shards.get(name) ?? 1)!
      const wanted =
        positions.reduce((sum, position, shard) => sum + counts[shard]!.at(Math.min(position, log.length))!, 0) - parked
      const where = `${name} generation ${generation} at ${positions.join(', ')}, with ${parked} events parked`
      if (applied !== wanted) find(`${where}: ${applied} events are applied, and ${wanted} should be`)
      for (const table of [balanced, journalled])
        if (table !== null && table !== applied) find(`${where}: a table has ${table} events, and ${applied} are applied`)
    }
    return looks.length
  },

  /** A cursor is moved by the process that holds it, and forward. */
  'moved by its holder'({ moves, workerNames }, find) {
    const moved = moves.filter(({ old, new: now }) => old.position !== now.position)
    for (const move of moved) {
      const { old, new: now, seen, actor, proc } = move
      const holder = workerNames.get(seen.holder) ?? 'nobody'
      const change = `${cursorOf(move)} went from ${old.position} to ${now.position}`
      if (holder !== proc) find(`${change} by ${actor}, and ${holder} held it`)
      if (Number(now.position) < Number(old.position)) find(`${change}, which is back`)
    }
    return moved.length
  },

  /** Every taking of a cursor has a fence that it never had before, and nothing else changes it. */
  'fences never repeat'({ takes }, find) {
    let looked = 0
    for (const [cursor, list] of groupBy(takes, cursorOf)) {
      const seen = new Set<string>()
      for (const { old, new: now, actor } of list) {
        seen.add(old.fence)
        const isTaken = now.holder !== null && (now.holder !== old.holder || now.fence !== old.fence)
        if (isTaken) looked++
        if (isTaken ? seen.has(now.fence) : now.fence !== old.fence)
          find(`${cursor}: the fence went from ${old.fence} to ${now.fence} (by ${actor})`)
        seen.add(now.fence)
      }
    }
    return looked
  },

  'seen and not too early'({ entries }, find) {
    const seen = told(entries, 'seen', 'ok')
    for (const { name, key, n, isThere } of seen)
      if (!isThere) find(`${name} was said to have applied number ${n} of ${key}, and had not`)
    return seen.length
  },

  /** Every key has its current state in the end, and no refresh wrote an older one than the one before. */
  'copied in the end'({ counters, copied, refreshed, isDrained }, find) {
    for (const [key, n] of counters)
      if (isDrained && n > 0 && copied.get(key) !== n)
        find(`key ${key} was written ${n} times, and its copy says ${copied.get(key)}`)
    for (const [key, list] of groupBy(refreshed, (row) => row.key)) {
      const back = list.findIndex(({ n }, index) => index > 0 && n < list[index - 1]!.n)
      if (back > 0) find(`a refresh of ${key} wrote ${list[back]!.n} after ${list[back - 1]!.n}`)
    }
    return refreshed.length
  },

  /** Of each key every event, the first time in the order of the log: parked events hold back what comes after them. */
  'handed over in order'({ log, entries, isDrained }, find) {
    const first = new Map<number, number>()
    for (const { op, ph, position, wall } of entries)
      if (op === 'call' && ph === 'ok') first.set(Number(position), Math.min(wall, first.get(Number(position)) ?? wall))
    for (const [key, events] of groupBy(log, (event) => event.key)) {
      let before = 0
      for (const { position } of events) {
        const at = first.get(position)
        const text = `${names.sink}, key ${key}: event ${position} was`
        if (at === undefined && isDrained) find(`${text} never handed over`)
        if (at !== undefined && at < before) find(`${text} handed over ${before - at} ms before the one before it`)
        before = at ?? before
      }
    }
    return first.size
  },

  'all at rest'({ isDrained, notStopped, log, entries }, find) {
    if (!isDrained) find('not every event was worked on within the bound after healing')
    for (const slot of notStopped) find(`process ${slot} did not stop in order after healing`)
    // No restore happens here, so nothing may take the log for another one.
    for (const { op, name, reason } of entries) if (op === 'latched') find(`${name} was latched: ${reason}`)
    return log.length
  },
} satisfies Record<string, Check<Facts>>

export type CheckName = keyof typeof checks

/** Of several shards the one that has this event. */
const shardOf = ({ bucket }: Logged, shards: number): number => Math.floor(((bucket + 1) * shards - 1) / 1024)

/** '{[3,5),[9,10)}' as a question. */
function rangesOf(text: string): (position: number) => boolean {
  const ranges = [...text.matchAll(/\[(\d+),(\d+)\)/g)].map(([, from, to]) => [Number(from), Number(to)] as const)
  return (position) => ranges.some(([from, to]) => position >= from && position < to)
}

type Call = { readonly event: Logged; readonly fence: string; readonly entry: Entry }

function firstOutOfOrder(due: readonly Logged[], calls: readonly Call[], ends: ReadonlyMap<unknown, Entry>): string | undefined {
  let next = 0
  let before: Entry | undefined
  for (const { event, entry } of calls) {
    const end = before === undefined ? undefined : ends.get(before.call)
    const hasEnded = end?.ph === 'ok' && end.n < entry.n
    const isAgain = event.position === due[next - 1]?.position && (Number(entry.attempt) > 1 || !hasEnded)
    if (!isAgain) {
      if (event.position !== due[next]?.position)
        return `event ${event.position} was handed over, and ${due[next]?.position ?? 'none'} was next`
      next++
      if (before !== undefined && !hasEnded) return `event ${event.position} was handed over before ${before.position} had ended`
    }
    before = entry
  }
  return undefined
}

const cursorOf = ({ new: now }: Update<never, never>): string => `${now.name} generation ${now.generation} shard ${now.shard}`
