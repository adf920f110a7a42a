// The checks of cursors, which both scenarios have.

import { type Find, groupBy, type LogFacts } from './facts.ts'

/** Every taking of a cursor has a fence that it never had before, and nothing else changes it. */
export function fencesNeverRepeat({ changes }: LogFacts, find: Find): number {
  let looked = 0
  for (const [cursor, list] of groupBy(changes, nameOf)) {
    const seen = new Set<bigint>()
    for (const { oldFence, newFence, oldHolder, newHolder, actor } of list) {
      seen.add(oldFence)
      const isTaken = newHolder !== null && (newHolder !== oldHolder || newFence !== oldFence)
      if (isTaken) looked++
      if (isTaken ? seen.has(newFence) : newFence !== oldFence)
        find(`${cursor}: the fence went from ${oldFence} to ${newFence} (by ${actor})`)
      seen.add(newFence)
    }
  }
  return looked
}

/** A cursor is moved by the process that holds it, and forward. */
export function movedByHolder({ changes, workerNames }: LogFacts, find: Find): number {
  const moves = changes.filter(({ oldPosition, newPosition }) => oldPosition !== newPosition)
  for (const move of moves) {
    const holder = move.oldHolder === null ? 'nobody' : (workerNames.get(move.oldHolder) ?? '?')
    const actor = move.actor.split(' ')[0]
    const change = `${nameOf(move)} went from ${move.oldPosition} to ${move.newPosition}`
    if (holder !== actor) find(`${change} by ${move.actor}, and ${holder} held it`)
    if (move.newPosition < move.oldPosition) find(`${change}, which is back`)
  }
  return moves.length
}

export function allAtRest({ isDrained, notStopped, log, entries }: LogFacts, find: Find): number {
  if (!isDrained) find('not every event was worked on within the bound after healing')
  for (const slot of notStopped) find(`process ${slot} did not stop in order after healing`)
  // No restore happens here, so nothing may take the log for another one.
  for (const entry of entries.filter(({ op }) => op === 'latched'))
    find(`${String(entry.name)} was latched: ${String(entry.reason)}`)
  return log.length
}

function nameOf({ name, generation, shard }: { name: string; generation: number; shard: number }): string {
  return `${name} generation ${generation} shard ${shard}`
}
