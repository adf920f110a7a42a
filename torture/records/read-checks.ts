// What readers saw, against what the committed submissions make of a scope.

import type { Entry } from '../history.ts'
import type { Facts, Find } from './facts.ts'
import { digestAt, emptyDigest, type Line } from './model.ts'

/** Whatever was read at any moment is a whole number of submissions: those up to one number, and nothing of another. */
export function allOrNothing(facts: Facts, find: Find, lines: readonly Line[]): number {
  const byPlace = linesByPlace(lines)
  const reads = facts.entries.filter(({ op, ph }) => op === 'read' && ph === 'ok')
  for (const read of reads) {
    const line = byPlace.get(placeOf(read))
    const number = Number(read.number)
    const wanted = line === undefined ? emptyDigest : digestAt(line, number)
    if (read.digest === wanted) continue
    find(
      `${read.proc} read ${placeOf(read)} at number ${number}${read.asOf === undefined ? '' : ` (as of ${String(read.asOf)})`}: ${String(read.rows)} records, ${JSON.stringify(read.fold)} (submission@number: records), which is not what the submissions up to ${number} make of it`,
    )
  }
  const gets = facts.entries.filter(({ op, ph, status }) => op === 'get' && ph === 'ok' && status !== undefined)
  for (const get of gets) {
    const versions = byPlace.get(placeOf(get))?.steps.flatMap((step) => step.versions) ?? []
    const isThere = versions.some(
      ({ key, number, mark, status }) =>
        key === get.key && mark === get.mark && status === get.status && (status === 'DELETED' || String(number) === get.number),
    )
    if (!isThere)
      find(
        `${get.proc} got ${placeOf(get)} ${String(get.key)} as ${String(get.mark)} in version ${String(get.number)}, which no commit wrote`,
      )
  }
  return reads.length + gets.length
}

/** Who begins to read after somebody was answered sees at least what that answer said is committed. */
export function readsGoForward(facts: Facts, find: Find): number {
  const answers = facts.entries.flatMap((entry): { place: string; wall: number; number: number; what: string }[] => {
    const number =
      (entry.op === 'put' || entry.op === 'append') && entry.ph === 'ok'
        ? entry.given
        : (entry.op === 'read' && entry.ph === 'ok') || (entry.op === 'ended' && entry.state === 'submitted')
          ? entry.number
          : undefined
    if (number === undefined || number === null) return []
    return [{ place: placeOf(entry), wall: entry.wall, number: Number(number), what: `${entry.proc} ${entry.op}` }]
  })
  const reads = facts.entries.filter(({ op, ph, asOf }) => op === 'read' && ph === 'ok' && asOf === undefined)
  for (const read of reads) {
    // Strictly before: within one millisecond nobody knows which was first.
    const late = answers.find(
      ({ place, wall, number }) => place === placeOf(read) && wall < Number(read.began) && number > Number(read.number),
    )
    if (late !== undefined)
      find(
        `${read.proc} read ${placeOf(read)} at number ${String(read.number)} after ${late.what} was answered with ${late.number}`,
      )
  }
  return reads.length
}

/** Reads during which some submission of the place was being applied. */
export function readsMeanwhile(facts: Facts, lines: readonly Line[]): number {
  const places = new Map(lines.map(({ scope }) => [scope.id, `${scope.set}/${scope.place}`]))
  const spans = facts.changes.flatMap((change, index) => {
    if (change.to !== 'submitting') return []
    const end = facts.changes.slice(index + 1).find(({ submission }) => submission === change.submission)
    return [{ place: places.get(change.scope), from: change.at, to: end?.at ?? Number.POSITIVE_INFINITY }]
  })
  return facts.entries.filter(
    (entry) =>
      entry.op === 'read' &&
      entry.ph === 'ok' &&
      spans.some(({ place, from, to }) => place === placeOf(entry) && from < entry.wall && Number(entry.began) < to),
  ).length
}

function linesByPlace(lines: readonly Line[]): ReadonlyMap<string, Line> {
  return new Map(lines.map((line) => [`${line.scope.set}/${line.scope.place}`, line]))
}

function placeOf(entry: Entry): string {
  return `${String(entry.set)}/${String(entry.place)}`
}
