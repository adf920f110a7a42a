// The checks of what a sink's function was called with: at least once, in the order of each key, and again only what was not acknowledged.

import type { Entry } from '../history.ts'
import { type CursorChange, type Find, groupBy, type LogFacts, type Logged, rangesOf, shardOf } from './facts.ts'

export function calledAtLeastOnce({ log, entries, audit, isDrained }: LogFacts, find: Find): number {
  const ended = new Map<number, string>()
  const keys = new Map<string, string>()
  for (const { op, ph, position, idempotencyKey, id } of entries) {
    if (op !== 'call' || ph !== 'ok') continue
    ended.set(Number(position), String(id))
    const known = keys.get(String(id))
    if (known !== undefined && known !== idempotencyKey)
      find(`event ${String(id)} was handed over under the keys ${known} and ${String(idempotencyKey)}`)
    keys.set(String(id), String(idempotencyKey))
  }
  for (const { position, key } of log)
    if (isDrained && !ended.has(position)) find(`event ${position} (${key}) was never handed over, and the log ends at ${audit.head}`)
  return log.length
}

/**
 * Under one fence the calls of a key are those of its events that were not acknowledged when the cursor was taken, in order, each begun after
 * the one before it ended, and each again only after it failed: whether it was parked meanwhile or not.
 */
export function calledInOrder(sinkName: string, facts: LogFacts, find: Find): number {
  const shards = facts.shards.get(sinkName) ?? 1
  const byPosition = new Map(facts.log.map((event) => [event.position, event]))
  const taken = new Map<string, CursorChange>()
  // The first change with a fence is the taking itself; what follows are its moves.
  for (const change of facts.changes)
    if (change.name === sinkName && !taken.has(String(change.newFence))) taken.set(String(change.newFence), change)
  const byKey = groupBy(
    facts.log.filter(({ id }) => id !== null),
    ({ key }) => key,
  )
  let looked = 0
  for (const list of groupBy(callsOf(sinkName, facts.entries), ({ proc }) => proc).values()) {
    const fences = new Map<number, string>()
    const under = new Map<unknown, Call>()
    for (const entry of list) {
      if (entry.op === 'acquired') {
        fences.set(Number(entry.shard), String(entry.fence))
        continue
      }
      const event = byPosition.get(Number(entry.position))
      if (event === undefined) continue
      if (entry.ph === 'invoke') {
        looked++
        under.set(entry.call, { event, fence: fences.get(shardOf(event, shards)) ?? '', entry })
      }
    }
    for (const [fence, calls] of groupBy([...under.values()], (call) => call.fence)) {
      const change = taken.get(fence)
      if (change === undefined) {
        find(`${calls[0]!.entry.proc} handed over event ${calls[0]!.event.position} without holding the cursor`)
        continue
      }
      const isDone = rangesOf(change.done)
      const isDue = (position: number) => (position > change.oldPosition && !isDone(position)) || change.parked.has(position)
      const ends = endsOf(list)
      for (const [key, ofKey] of groupBy(calls, ({ event }) => event.key)) {
        const due = byKey.get(key)!.filter(({ position }) => isDue(position))
        followOrder(`${sinkName} in ${ofKey[0]!.entry.proc} under fence ${fence}, key ${key}`, due, ofKey, ends, find)
      }
    }
  }
  return looked
}

interface Call {
  readonly event: Logged
  readonly fence: string
  readonly entry: Entry
}

function callsOf(sinkName: string, entries: readonly Entry[]): Entry[] {
  return entries.filter(({ op, name }) => op === 'call' || (op === 'acquired' && name === sinkName))
}

/** When each call ended, by its number. */
function endsOf(entries: readonly Entry[]): Map<unknown, Entry> {
  return new Map(entries.filter(({ op, ph }) => op === 'call' && ph !== 'invoke').map((entry) => [entry.call, entry]))
}

function followOrder(
  where: string,
  due: readonly Logged[],
  calls: readonly Call[],
  ends: ReadonlyMap<unknown, Entry>,
  find: Find,
): void {
  let next = 0
  let before: Entry | undefined
  for (const { event, entry } of calls) {
    const end = before === undefined ? undefined : ends.get(before.call)
    const hasEnded = end !== undefined && end.ph === 'ok' && end.n < entry.n
    const isAgain = event.position === due[next - 1]?.position && (Number(entry.attempt) > 1 || !hasEnded)
    if (!isAgain && event.position !== due[next]?.position) {
      find(`${where}: event ${event.position} was handed over, and ${due[next]?.position ?? 'none'} was next`)
      return
    }
    if (!isAgain) next++
    if (!isAgain && before !== undefined && !hasEnded) {
      find(`${where}: event ${event.position} was handed over before ${String(before.position)} had ended`)
      return
    }
    before = entry
  }
}
