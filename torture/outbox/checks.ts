// The checks of outbox. Each is a promise of the event log as a program over the facts: how much it looked at, and what it found against
// the promise.

import { calledAtLeastOnce, calledInOrder } from '../events/call-checks.ts'
import { allAtRest } from '../events/cursor-checks.ts'
import { type Check, type Find, groupBy, type LogFacts } from '../events/facts.ts'
import { eventsOf, tooFar } from '../events/ingester.ts'
import { effectsName, sinkName } from './handlers.ts'

export const checks = {
  'committed and logged': committedAndLogged,
  'dense positions': densePositions,
  'order of each key': orderOfKeys,
  'called at least once': calledAtLeastOnce,
  'called in order': (facts, find) => calledInOrder(sinkName, facts, find),
  'effects once': effectsOnce,
  'ingested once': ingestedOnce,
  'waits for nobody': waitsForNobody,
  'all at rest': allAtRest,
} satisfies Record<string, Check<LogFacts>>

export type CheckName = keyof typeof checks

/** An event is in the log, once, if and only if its transaction committed; and what was acknowledged has committed. */
function committedAndLogged(facts: LogFacts, find: Find): number {
  const logged = groupBy(
    facts.log.filter((event) => event.id !== null && event.type === 'Written'),
    ({ data }) => `${data.b} ${data.i}`,
  )
  const wrote = groupBy(facts.wrote, ({ batch, i }) => `${batch} ${i}`)
  for (const [event, rows] of wrote) {
    const count = logged.get(event)?.length ?? 0
    const { key, n } = rows[0]!
    if (count !== 1) find(`event ${event} (number ${n} of ${key}) committed, and is in the log ${count} times`)
  }
  for (const [event, list] of logged) {
    const [{ data, position }] = list as [(typeof list)[0]]
    if (data.ghost) find(`event ${event} at position ${position} was rolled back with its savepoint`)
    else if (data.n !== undefined && !wrote.has(event)) find(`event ${event} at position ${position} was never committed`)
  }
  countsAgree(facts, find)
  const batches = groupBy(facts.wrote, ({ batch }) => batch)
  const plain = groupBy(
    [...logged.values()].flat().filter(({ data }) => data.n === undefined && !data.ghost),
    ({ data }) => data.b,
  )
  const ends = facts.entries.filter(({ op, ph }) => op === 'append' && ph !== 'invoke')
  for (const { batch, way, ph, count } of ends) {
    const found = ((way === 'plain' ? plain : batches).get(String(batch)) ?? []).length
    const text = `transaction ${String(batch)} of ${String(count)} event(s) was answered ${String(ph)}, and ${found} are there`
    if (ph === 'ok' && found !== count) find(text)
    if (ph === 'fail' && found > 0) find(text)
    if (ph === 'info' && found > 0 && found !== count) find(`${text}: half of it`)
  }
  return wrote.size + plain.size
}

/** The counter of a key was raised in the same transactions: the numbers in the log are all that it has. */
function countsAgree({ log, counters }: LogFacts, find: Find): void {
  const numbers = groupBy(
    log.filter(({ data }) => data?.n !== undefined),
    ({ key }) => key,
  )
  for (const [key, n] of counters) {
    const found = numbers.get(key)?.length ?? 0
    if (found !== n) find(`key ${key} was written ${n} times, and the log has ${found} of its events`)
  }
}

/** 1, 2, 3 ... each with its event, as the shipped audit says too; and whoever was given an event was given it at its position. */
function densePositions({ log, audit, entries, applied }: LogFacts, find: Find): number {
  if (!audit.isSound || audit.head !== log.length)
    find(`the audit of the log says ${JSON.stringify(audit)}, and it has ${log.length} positions`)
  for (const [index, { position, id }] of log.entries()) {
    if (position !== index + 1) {
      find(`position ${index + 1} is missing: the next one is ${position}`)
      break
    }
    if (id === null) find(`position ${position} has no event`)
  }
  const idAt = new Map(log.map(({ position, id }) => [position, id]))
  const given = [
    ...entries
      .filter(({ op, ph }) => op === 'call' && ph === 'invoke')
      .map(({ position, id, proc }) => ({ position, id, proc, to: sinkName })),
    ...applied.map(({ position, eventId: id, proc, name: to }) => ({ position, id, proc, to })),
  ]
  for (const { position, id, proc, to } of given) {
    if (idAt.get(Number(position)) !== id)
      find(
        `${to} in ${proc} was given event ${String(id)} at position ${String(position)}, where the log has ${idAt.get(Number(position))}`,
      )
  }
  return log.length + given.length
}

/** The number of an event was drawn under its key's row lock: positions follow it. */
function orderOfKeys({ log }: LogFacts, find: Find): number {
  const numbered = log.filter(({ data }) => data?.n !== undefined || data?.t !== undefined)
  for (const [key, events] of groupBy(numbered, (event) => event.key)) {
    let last = -1
    for (const { position, data } of events) {
      const number = data.n ?? data.t! * 100 + data.i
      if (number <= last) find(`key ${key}: number ${number} is at position ${position}, behind number ${last}`)
      last = number
    }
  }
  return numbered.length
}

function effectsOnce({ log, applied }: LogFacts, find: Find): number {
  const effects = groupBy(
    applied.filter(({ name }) => name === effectsName),
    ({ position }) => String(position),
  )
  for (const { position, key } of log) {
    const found = effects.get(String(position)) ?? []
    if (found.length !== 1)
      find(
        `event ${position} (${key}) has ${found.length} effects: ${found.map(({ proc, xid }) => `${proc} in ${xid}`).join(', ')}`,
      )
  }
  return log.length
}

/** Every event of every transaction of the source, once; whatever was answered is there; and nothing beyond a gap. */
function ingestedOnce({ log, entries }: LogFacts, find: Find): number {
  const mined = groupBy(
    log.filter(({ type }) => type === 'Mined'),
    ({ data }) => `${data.t}/${data.i}`,
  )
  for (const [id, list] of mined)
    if (list.length > 1)
      find(`event ${id} of the source was taken in ${list.length} times, at ${list.map(({ position }) => position).join(', ')}`)
  const last = Math.max(0, ...[...mined.values()].map(([event]) => event!.data.t!))
  if (last >= tooFar) find(`transaction ${last} of the source was taken in, and what came before it was not`)
  else {
    for (let transaction = 1; transaction < last; transaction++) {
      for (const { id } of eventsOf(transaction))
        if (!mined.has(id)) find(`event ${id} of the source was never taken in, and later ones were`)
    }
  }
  const answered = entries.filter(({ op, ph }) => op === 'ingest' && ph === 'ok')
  const missing = new Set(answered.flatMap(({ ids }) => ids as string[]).filter((id) => !mined.has(id)))
  for (const id of missing) find(`event ${id} of the source was acknowledged, and is not in the log`)
  return mined.size
}

function waitsForNobody({ entries }: LogFacts, find: Find): number {
  const looks = entries.filter(({ op }) => op === 'stranger')
  for (const { xid, windows, isThere } of looks)
    if (!isThere)
      find(
        `${String(windows)} windows of the sequencer after its commit transaction ${String(xid)} had no position, while a stranger's was open`,
      )
  return looks.length
}
